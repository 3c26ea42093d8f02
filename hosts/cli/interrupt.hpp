// Ctrl-C: the first one is noticed between two steps and ends the command cleanly; a second one ends it at once.
#pragma once

namespace attnkit::cli {

void catch_interrupts();
// Has a signal come?
bool is_interrupted();
// Throws Failure (interrupted) once a signal has come.
void check_interrupt();
// Waits until fd can be read; throws like check_interrupt meanwhile, whichever thread the signal met.
void wait_for_input(int fd);

}  // namespace attnkit::cli
