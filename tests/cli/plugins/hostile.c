/* The mean of tests/abi with one misdeed, chosen by the file's name: what searches and commands must survive. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "mean.h"

enum { CREATE, RUN };

static void misbehave(int where, const attn_run* run) {
  const char* name = PLUGIN_NAME;
  /* raise() could be blocked or handled; a bad address is what plugins really do. */
  volatile int* volatile nowhere = NULL;
  if (where == CREATE && strcmp(name, "crash_create") == 0) *nowhere = 1;
  if (where != RUN) return;
  if (strcmp(name, "crash_run") == 0) *nowhere = 1;
  if (strcmp(name, "crash_long") == 0 && run->keys > 250) *nowhere = 1;
  if (strcmp(name, "exit_run") == 0) exit(0);
  if (strcmp(name, "hang_run") == 0)
    for (;;) pause();
  if (strcmp(name, "chatter") == 0) {
    printf("{\"id\":1,\"ok\":true,\"result\":{}}\n");
    fflush(stdout);
    fprintf(stderr, "what a plugin says is for its log\n");
  }
  if (strcmp(name, "hungry") == 0)
    for (;;) *(volatile char* volatile)malloc((size_t)64 << 20) = 1;
  if (strcmp(name, "nan_run") == 0) ((float*)run->ports[1].data)[0] = NAN;
}

static int32_t hostile_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                              const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  misbehave(CREATE, NULL);
  const int32_t code = mean_create(block, values, mech, ports, n_ports, err);
  if (code == ATTN_OK && strcmp(PLUGIN_NAME, "no_ports") == 0) *n_ports = 0;
  return code;
}

static int32_t hostile_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                            attn_error* err) {
  volatile int* volatile nowhere = NULL;
  /* Not what a file is asked when it is loaded for the first time, after which it would not be loaded again. */
  if (strcmp(PLUGIN_NAME, "crash_plan") == 0 && request->queries != 1 && request->queries != 512) *nowhere = 1;
  return mean_plan(mech, request, info, plan, err);
}

static int32_t hostile_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  const int32_t code = mean_run(plan, run, err);
  misbehave(RUN, run);
  return code;
}

static const char* summary(void) {
  return strcmp(PLUGIN_NAME, "colourful") == 0 ? "red \033[31m\302\2331m and a byte \xff" : "the mean of all values";
}

MEAN_PLUGIN((table.create = hostile_create, table.plan = hostile_plan, table.run = hostile_run,
             table.summary = table.citation = summary()))
