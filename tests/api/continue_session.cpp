// continue_session FILE: goes on with the session saved there and prints what streamed.hpp's finish gives.
#include <iostream>

#include "streamed.hpp"

int main(int n, char** arguments) {
  if (n != 2) return 2;
  try {
    const Streamed o;
    attnkit::Session session = attnkit::Session::load(o.model, read_bytes(arguments[1]));
    std::cout << finish(o, session);
  } catch (const attnkit::Error& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
