#pragma once
// Printing the plan of a run: `octet plan` and `octet train --dry-run`.
#include "base/json.h"
#include "cli/command.h"
#include "config/config.h"

namespace octet {

std::vector<OptionSpec> plan_options(OptionSpec ranks);  // ranks: what --ranks means to the command
int show_plan(const Arguments& arguments, const RunConfig& config, int64_t ranks);
void print_plan(const json& plan);  // for people

}  // namespace octet
