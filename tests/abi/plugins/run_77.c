/* run answers with a code that does not exist, and a message without an end. */
#include "mean.h"

static int32_t run_77(const attn_plan* plan, const attn_run* run, attn_error* err) {
  (void)plan, (void)run;
  if (err != NULL) memset(err->message, 'x', sizeof(err->message));
  return 77;
}
MEAN_PLUGIN(table.run = run_77)
