"""The plugins that tests/validate builds, each with its one misdeed, and the checks that must find it, and no others.

Most are plugins/faulty.c with the misdeed's name written into the binary; some are built with options of their own.
"""

FENCES = ["memory.fences"]
CRASHES = {  # found where the process dies
    "ENTRY_CRASHES": "load.works", "ENTRY_HANGS": "load.works", "ENTRY_EXITS": "load.works",
    "CREATE_CRASHES": "plan.create", "CREATE_HANGS": "plan.create",
    "PLAN_CRASHES": "plan.answers", "PLAN_ABORTS": "plan.answers", "PLAN_HANGS": "plan.answers", "PLAN_EXITS": "plan.answers",
    "RUN_CRASHES": "memory.fences", "RUN_HANGS": "memory.fences", "RUN_EXITS": "memory.fences",
    "RUN_ABORTS": "memory.fences", "RUN_DIVIDES": "memory.fences", "BACKWARD_CRASHES": "memory.fences",
}
FAULTS = {name: [check] for name, check in {
    **CRASHES,
    "NULL_TABLE": "load.works", "SHORT_TABLE": "load.works", "NULL_FUNCTION": "load.works", "NULL_TEXT": "load.works",
    "NEEDS_NEWER_HOST": "load.works", "UNKNOWN_DEVICE": "load.works", "BAD_DEFAULT": "load.works", "ENTRY_REFUSES": "load.works",
    "ENTRY_PRINTS": "load.works", "WRONG_NAME": "load.name", "REFUSES_LATER_HOST": "load.later_host",
    "REFUSES_EARLIER_HOST": "load.earlier_host",
    "ENTRY_FLUSHES": "load.float_modes", "ENTRY_HANDLES_SIGNALS": "load.traceless", "ENTRY_STARTS_THREAD": "load.traceless",
    "ENTRY_OPENS_FILES": "load.traceless", "ENTRY_SETS_ENVIRONMENT": "load.traceless",
    "NO_SUMMARY": "table.texts", "OPTION_WITHOUT_DOC": "table.options", "TEXT_WITH_BOUNDS": "table.options",
    "PORT_WITHOUT_DOC": "table.ports", "PORT_WITH_ROWS": "table.ports", "PORTS_DIFFER": "table.equal_ports",
    "FILL_AT_RANDOM": "table.fill", "FILL_PAST_END": "table.fill", "FILLS_ANYTHING": "table.refuses_to_fill",
    "CREATE_REFUSES": "plan.create", "CREATE_CODE_77": "plan.create", "CREATE_NOTHING": "plan.create",
    "ABSURD_PORTS": "plan.create", "PORT_KIND": "plan.create", "PORT_NAME": "plan.create", "TWO_OUTPUTS": "plan.create",
    "SAME_NAMES": "plan.create", "ENDLESS_PORT": "plan.create", "DESTROY_NULL": "plan.destroy",
    "PLAN_REFUSES": "plan.answers", "PLAN_INTERNAL": "plan.answers", "PLAN_NOTHING": "plan.answers",
    "STATE_IS_HUGE": "plan.answers", "SCRATCH_IS_HUGE": "plan.answers", "UNKNOWN_FLAGS": "plan.answers",
    "STATE_ALWAYS": "plan.equal_answers", "ANSWERS_DIFFER": "plan.equal_answers",
    "LONGER_REQUEST": "plan.other_minors", "WRITES_UNKNOWN_FIELDS": "plan.other_minors",
    "BLOCK_OF_MINOR_1": "plan.other_blocks", "REFUSES_LATER_BLOCK": "plan.other_blocks", "WRAPS": "plan.huge",
    "COSTS_NOTHING": "plan.costs", "COSTS_ALWAYS": "plan.costs",
    "STATE_FOR_READING": "plan.state_grows", "STATE_SHRINKS": "plan.state_grows",
    "WRITES_PAST": "memory.fences", "WRITES_BEFORE": "memory.fences", "WRITES_GAP": "memory.fences",
    "WRITES_INPUT": "memory.fences", "READS_PAST": "memory.fences", "SCRATCH_PAST": "memory.fences",
    "STATE_PAST_END": "memory.fences", "STATE_PAST_ROW": "memory.fences", "OWN_STRIDE": "memory.fences", "BACKWARD_INPUT": "memory.fences", "BACKWARD_READS_PAST": "memory.fences",
    "RUN_BREAKS": "memory.fences", "RUN_REFUSES": "memory.fences",
    "SCRATCH_SHOWS": "memory.scratch", "BY_BOUNDS": "memory.bounds",
    "RUN_PRINTS": "memory.fences", "RUN_FLUSHES": "process.float_modes", "RUN_HANDLES_SIGNALS": "process.signals",
    "RUN_BLOCKS_SIGNALS": "process.signals", "PLAN_STARTS_THREAD": "process.threads", "RUN_OPENS_FILES": "process.files",
    "CREATE_SETS_ENVIRONMENT": "process.settings", "CREATE_CHANGES_FOLDER": "process.settings",
    "RUN_ALLOCATES": "process.allocates", "BACKWARD_ALLOCATES": "process.allocates",
    "CREATE_TRUSTS_MALLOC": "process.out_of_memory", "PLAN_HIDES_MEMORY": "process.out_of_memory",
    "CREATE_FAILS_AND_LEAKS": "process.out_of_memory", "FORKED_HANGS": "process.forks",
    "CREATE_ABORTS": "process.out_of_memory", "CREATE_TRIES_AGAIN": "process.out_of_memory",
    "CREATE_LEAKS": "process.leaks", "FILL_LEAKS": "process.leaks", "PLAN_LEAKS": "process.leaks", "TABLE_CHANGES": "process.table_stays",
    "OTHER_ALLOCATES": "process.allocates", "ONE_COPY": "process.second_copy", "RUN_EATS_MEMORY": "memory.fences",
    "REPEATS_LATE": "whole.repeats_often", "SKIPS_LATE": "whole.repeats_often", "BY_ODD_WORKERS": "whole.workers", "OTHER_IS_ROUGH": "whole.precision",
    "HALVES_ARE_ROUGH": "whole.halves",
    "REFUSES_LATER_RUN": "whole.later_structs", "WRITES_LATER_ERROR": "refusal.types", "INFINITE_HEAD": "locality.rows_and_heads",
    "LEAVES_ONE": "whole.writes", "REPEATS": "whole.repeats", "BY_WORKERS": "whole.workers", "BY_LAYOUT": "whole.layout",
    "BY_ALIGNMENT": "whole.layout", "ONE_ROW": "whole.one_row", "LONG": "whole.long", "OFFSET": "whole.scales",
    "NAN_IN_QUERIES": "whole.nan_in_queries", "NAN_IN_VALUES": "whole.nan_in_keys", "DIVIDES_BY_ZERO": "whole.extremes",
    "SHARED_KEYS": "whole.shared_keys", "STATIC_BUFFER": "whole.at_once", "NO_KEYS": "whole.no_keys",
    "STREAMS_ENCODER": "refusal.bidirectional", "STREAMS_F64": "refusal.f64", "TAKES_INTEGERS": "refusal.types",
    "REFUSES_WORDLESS": "refusal.types", "REFUSES_IN_LINES": "refusal.types", "REFUSES_AND_WRITES": "refusal.types",
    "REFUSES_SILENTLY": "refusal.types", "REFUSES_AS_INVALID": "refusal.types",
    "FUTURE": "locality.future", "FUTURE_NAN": "locality.future", "PADDED_KEYS": "locality.padding", "PADDED_QUERIES": "locality.padding",
    "OTHER_ROW": "locality.batch_rows", "OTHER_HEAD": "locality.rows_and_heads", "SEES_ALL": "locality.visible",
    "FORGETS_ODD_CHUNK": "stream.chunks", "BY_ODD_SLOT": "stream.slots", "DRIFTS_LATE": "stream.long",
    "STATE_IN_PROCESS": "stream.other_process", "STREAM_BUFFER": "stream.at_once",
    "FORGETS_CHUNK": "stream.chunks", "FORGETS_PREFILL": "stream.prefill", "STREAM_BY_WORKERS": "stream.workers",
    "DRIFTS": "stream.many_steps", "BY_SLOT": "stream.moves", "STATE_BY_CAPACITY": "stream.grows",
    "OWN_POSITIONS": "stream.own_positions", "SLOTS_IGNORED": "stream.slots", "OTHER_SLOT": "stream.slots",
    "SHARED_SLOT": "stream.shared_slots", "SHARED_KEYS_STREAM": "stream.shared_keys", "EMPTY_RUN": "stream.empty_runs", "SAYS_REWINDS": "stream.rewinds",
    "FORGETS_SOURCE": "stream.growing_source", "INDEX_IN_STATE": "stream.any_state",
    "NO_PREFIX_TRAINING": "gradient.forms", "GRADIENT_WRONG": "gradient.differences", "SAVES_SQUARES": "gradient.saves_linearly",
    "OVERWRITES_LEARNED": "gradient.adds", "PADDED_GRADIENT": "gradient.padding", "UNSEEN_GRADIENT": "gradient.visible",
    "FUTURE_GRADIENT": "gradient.causality", "NAN_GRADIENT": "gradient.causality", "NAN_QUERY_GRADIENT": "gradient.causality", "PREFIX_GRADIENT": "gradient.prefixes", "ROW_GRADIENT": "gradient.batch_rows",
    "HEAD_GRADIENT": "gradient.rows_and_heads", "SHARED_KEYS_GRADIENT": "gradient.shared_keys",
    "GRADIENT_BY_WORKERS": "gradient.workers",
    "GRADIENT_BY_LAYOUT": "gradient.layout", "GRADIENT_BY_BOUNDS": "gradient.bounds", "GRADIENT_REPEATS": "gradient.repeats",
    "GRADIENT_SKIPS": "gradient.skips", "TRAINS_OTHERWISE": "gradient.same_outputs", "GRADIENT_OFFSET": "gradient.scales",
    "REFUSES_LATER_GRAD": "gradient.later_structs", "GRADIENT_BUFFER": "gradient.at_once",
    "FEW_ROWS_GRADIENT": "gradient.few_rows",
    "TRAINS_WITHOUT_BACKWARD": "refusal.training",
    # Of plugins/thrower.cpp.
    "ENTRY_THROWS": "load.works", "CREATE_THROWS": "plan.create", "DESTROY_THROWS": "plan.destroy", "PLAN_THROWS": "plan.answers",
    "RUN_THROWS": "memory.fences", "BACKWARD_THROWS": "memory.fences",
    # Of plugins/rust.
    "RUST_PANICS": "memory.fences", "RUST_WRITES_PAST": "memory.fences", "RUST_ABORTS": "plan.answers",
    "RUST_ALLOCATES": "process.allocates", "RUST_STARTS_THREAD": "process.threads",
    "RUST_SETS_VAR": "process.settings", "RUST_FORGETS": "process.leaks", "RUST_FILLS_AT_RANDOM": "table.fill",
    "RUST_SHARES_A_STATIC": "whole.at_once",
    # Of the linker.
    "EXPORTS_MORE": "file.exports", "UNIQUE_SYMBOL": "file.unique", "SEARCH_PATH": "file.search_path",
    "EXECUTABLE_STACK": "file.hardened",
    "RELOCATED_CODE": "file.hardened", "WRITABLE_CODE": "file.hardened", "NEEDS_PATH": "file.needs", "NEEDS_ATTNKIT": "file.needs",
    "NO_ENTRY": "file.elf", "OTHER_MAJOR": "file.elf", "MISSING_SYMBOL": "load.works",
    # Of the file.
    "TEXT_FILE": "file.elf", "CUT_SHORT": "file.elf", "OTHER_MACHINE": "file.elf", "FOR_ALL_TO_WRITE": "file.elf",
}.items()}

THROWERS = {"ENTRY_THROWS", "CREATE_THROWS", "DESTROY_THROWS", "PLAN_THROWS", "RUN_THROWS", "BACKWARD_THROWS", "UNIQUE_SYMBOL"}
# Libraries of their own, by CMakeLists.txt.
LIBRARIES = {"TRAINS_WITHOUT_BACKWARD": "without_backward", "UNIQUE_SYMBOL": "unique", "EXPORTS_MORE": "exports_more",
             "SEARCH_PATH": "search_path", "EXECUTABLE_STACK": "executable_stack", "NO_ENTRY": "no_entry",
             **{name: name.lower() for name in ("RELOCATED_CODE", "WRITABLE_CODE", "NEEDS_PATH", "NEEDS_ATTNKIT")},
             "OTHER_MAJOR": "other_major", "MISSING_SYMBOL": "missing_symbol",
             **{name: "thrower" for name in THROWERS - {"UNIQUE_SYMBOL"}},
             **{name: "rust" for name in FAULTS if name.startswith("RUST_")}}
# Found only where blocks, options and shapes are drawn, or under a limit.
ARGUMENTS = {**{name: ("--seed", "1", "--draws", "8") for name in ("BY_ODD_WORKERS", "FORGETS_ODD_CHUNK", "BY_ODD_SLOT", "OTHER_IS_ROUGH", "OTHER_ALLOCATES")},
             "RUN_EATS_MEMORY": ("--seed", "1", "--draws", "0", "--memory", "256")}
GOOD = {"GOOD": "faulty", "GOOD_WITHOUT_BACKWARD": "without_backward", "GOOD_IN_CPP": "thrower", "GOOD_IN_RUST": "rust"}
