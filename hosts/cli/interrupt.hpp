// Ctrl-C: the first one is noticed between two steps and ends the command cleanly; a second one ends it at once.
#pragma once

namespace attnkit::cli {

void catch_interrupts();
// Throws Failure (interrupted) once a signal has come.
void check_interrupt();

}  // namespace attnkit::cli
