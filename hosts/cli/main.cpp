// The attnkit command.
#include "hosts/cli/command.hpp"

int main(int argc, char** argv) { return attnkit::cli::run_command_line(argc, argv); }
