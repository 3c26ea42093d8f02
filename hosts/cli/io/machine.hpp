// The machine and the day of a measurement.
#pragma once

#include <string>

#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

std::string cpu_name();          // "AMD EPYC 9354", or "unknown"
Json machine_json(int threads);  // cpu, processors, threads
std::string today();             // "2026-11-21", UTC

}  // namespace attnkit::cli
