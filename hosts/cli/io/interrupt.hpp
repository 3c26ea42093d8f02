// Ctrl-C, and what ends a command from outside (SIGTERM, SIGHUP of a terminal that goes): the first one is noticed
// between two steps and ends the command cleanly; a second Ctrl-C or SIGTERM ends it at once.
#pragma once

namespace attnkit::cli {

void catch_interrupts();
// Has a signal come?
bool is_interrupted();
// Throws Failure (interrupted) once a signal has come.
void check_interrupt();
// Waits until fd can be read; throws like check_interrupt meanwhile, whichever thread the signal met.
void wait_for_input(int fd);

// For a source that Ctrl-C ends: has a signal come?  If so it counts as dealt with.
bool take_interrupt();
// Can fd be read?  wait: waits until it can or a signal has come.
bool input_is_there(int fd, bool wait);

}  // namespace attnkit::cli
