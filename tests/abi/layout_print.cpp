// Prints the layout of the public headers; its output at a release becomes layout.txt.
#include <cstdio>

#include "layout.hpp"

int main() { std::fputs(current_layout().c_str(), stdout); }
