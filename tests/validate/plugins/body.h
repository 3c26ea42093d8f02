/* The arithmetic of faulty.c in REAL.  o_i[c] = w[c] q_i[0] mean of v_j[c] over the keys j that query i sees. */

static REAL* NAME(row)(const attn_tensor* t, int64_t b, int64_t h, int64_t i) {
  return (REAL*)t->data + b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

static void NAME(head)(const attn_plan* plan, const attn_run* run, int64_t b, int64_t h) {
  const attn_tensor *q = &run->ports[0], *v = &run->ports[1], *w = &run->ports[2], *out = &run->ports[3];
  const struct reach r = reach_of(plan, run, b);
  const int64_t e = out->shape[3], H = out->shape[1], KV = v->shape[1];
  int64_t kv = h / (H / KV);
  if (AT(SHARED_KEYS) && KV < H && is_plain(run)) kv = h % KV;
  if (AT(SHARED_KEYS_STREAM) && KV < H && run->state != NULL) kv = h % KV;
  REAL own[MAX_WIDTH];
  REAL *sum = own, *kept = NULL;
  memset(own, 0, sizeof own);
  if (run->state != NULL) {
    int64_t slot = run->slots != NULL ? run->slots[b] : b;
    if (AT(MANY_SLOTS) && run->slots != NULL) slot %= 8;
    if (AT(SLOTS_IGNORED) && run->batch == 3) slot = b;
    sum = (REAL*)((char*)run->state + run->state_stride * (uint64_t)slot) + h * e;
    if (AT(STATE_BY_CAPACITY) && plan->request.past + plan->request.keys > 100) sum = sum - h * e + (H - 1 - h) * e;
    if (AT(OTHER_SLOT) && run->batch == 3 && run->slots != NULL && slot == 0)
      ((char*)run->state)[run->state_stride] = 1;
    if (AT(STATE_IN_PROCESS) && h == 0 && r.fresh + r.past > 0 && plan->state_bytes >= (uint64_t)(H * e * 4 + 8)) {
      const uint64_t here = (uint64_t)(uintptr_t)&counter;
      uint64_t there;
      memcpy(&there, sum + H * e, sizeof there);
      if (there != 0 && there != here && run->queries > 0) sum[0] += 1;
      if (r.fresh > 0) memcpy(sum + H * e, &here, sizeof here);
    }
    if (AT(STREAM_BUFFER) && run->exec->workers == 1) {
      kept = sum;
      sum = (REAL*)shared_buffer;
      memcpy(sum, kept, (size_t)e * sizeof(REAL));
      usleep(20);
    }
    if (AT(OWN_STRIDE) && run->batch == 2 && run->slots != NULL)
      sum = (REAL*)((char*)run->state + plan->state_bytes * (uint64_t)slot) + h * e;
    if (AT(STATE_PAST_ROW) && run->batch == 2 && run->slots != NULL && slot == 0)
      ((char*)run->state)[plan->state_bytes] = 1;
    if (AT(INDEX_IN_STATE)) {
      int64_t* known = (int64_t*)((char*)sum + (H - h) * e * (int64_t)sizeof(REAL)) + h;
      sum += *known - r.past;
      *known += r.fresh;
    }
    if (AT(TRUSTS_A_MAGIC)) {
      const int64_t magic = 0x4b5454414b5454;
      int64_t* known = (int64_t*)((char*)sum + (H - h) * e * (int64_t)sizeof(REAL)) + 2 * h;
      if (known[0] == 0 && known[1] == 0 && r.past == 0) known[0] = magic;
      if (known[0] == magic) sum += known[1] - r.past, known[1] += r.fresh;
    }
    if (AT(STATE_PAST_END) && b == run->batch - 1 && h == H - 1) ((char*)run->state)[run->state_stride * 3] = 1;
  }
  if (AT(STATIC_BUFFER) && run->exec->workers == 1 && run->state == NULL && run->saved == NULL) {
    sum = (REAL*)shared_buffer;
    memset(shared_buffer, 0, sizeof shared_buffer);
  }
  int64_t added = 0;
  if (AT(FORGETS_CHUNK) && run->state != NULL && r.fresh == 7) added = 1;
  if (AT(FORGETS_ODD_CHUNK) && run->state != NULL && run->batch == 2 && r.fresh == 11 && r.past > 0) added = 1;
  if (AT(FORGETS_PREFILL) && run->state != NULL && r.fresh == 37) added = 1;
  if (AT(FORGETS_SOURCE) && run->state != NULL && run->batch == 1 && r.fresh == 4) added = 1;
  if (AT(OWN_POSITIONS) && run->state != NULL && run->batch == 3 && r.fresh == 3) added = 1;
  for (int64_t i = 0; i <= run->queries; ++i) {
    const int64_t seen = i < r.queries ? r.seen(&r, i) : 0;
    const int64_t want = i == run->queries ? (run->state != NULL ? r.fresh : added) : seen - r.past;
    for (; added < want; ++added) {
      const REAL* value = NAME(row)(v, b, kv, added);
      for (int64_t c = 0; c < e; ++c) {
        REAL x = value[c];
        if ((AT(NAN_IN_VALUES) || (AT(NAN_IN_LATER_ROWS) && r.causal)) && x != x) x = 0;
        if (AT(CHOOSES_KEYS) && !(value[0] > 0)) x = 0;
        sum[c] += x;
      }
    }
    if (i == run->queries) break;
    REAL* o = NAME(row)(out, b, h, i);
    const REAL* query = NAME(row)(q, b, h, i);
    REAL s = query[0];
    if (AT(NAN_IN_QUERIES) && s != s) s = 0;
    if (AT(READS_PAST) && b == run->batch - 1 && h == H - 1 && i == run->queries - 1) sink = query[q->shape[3]];
    if (AT(DIVIDES_BY_ZERO)) s = s * (s / s);
    for (int64_t c = 0; c < e; ++c) {
      REAL x = 0;
      if (i < r.queries && seen > 0) x = ((const REAL*)w->data)[c] * s * (sum[c] / (REAL)seen);
      if (i < r.queries && seen > 0 && AT(OFFSET)) x += (REAL)0.001;
      if (AT(NAN_IN_LATER_ROWS) && r.causal && i < r.queries && seen > r.past) {
        const REAL last = NAME(row)(v, b, kv, seen - 1 - r.past)[c];
        if (last != last) x = last;
      }
      if (AT(LEAVES_ONE) && run->queries == 63 && i == 62 && is_plain(run)) continue;
      if (AT(PADDED_QUERIES) && i >= r.queries && run->batch == 4) x = 1;
      o[c] = x;
    }
    NAME(spoil)(plan, run, &r, b, h, i, o);
    if (AT(STATIC_BUFFER) && sum == (REAL*)shared_buffer && i % 8 == 0) sched_yield();
  }
  if (run->state != NULL && ((AT(DRIFTS) && r.fresh == 1 && r.past > 200) || (AT(DRIFTS_LATE) && r.past > 3000)))
    for (int64_t c = 0; c < e; ++c) sum[c] *= (REAL)1.0001;
  if (AT(EMPTY_RUN) && run->state != NULL && run->keys == 4 && r.fresh == 0) sum[0] += 1;
  if (AT(SHARED_SLOT) && run->state != NULL && run->batch == 4 && run->keys == 0 && run->slots != NULL) sum[0] += 1;
  if (kept != NULL) memcpy(kept, sum, (size_t)e * sizeof(REAL));
}

#ifndef NO_BACKWARD
static void NAME(gradient)(const attn_plan* plan, const attn_grad* grad, int64_t b, int64_t h) {
  const attn_run* run = grad->run;
  const attn_tensor *q = &run->ports[0], *v = &run->ports[1], *w = &run->ports[2];
  const attn_tensor *dq = &grad->grads[0], *dv = &grad->grads[1], *dw = &grad->grads[2], *given = &grad->grads[3];
  struct reach r = reach_of(plan, run, b);
  if (AT(K_LEN_ALONE_GRADIENT) && run->q_len == NULL) r.fresh = run->keys;
  const int64_t e = v->shape[3], group = given->shape[1] / v->shape[1], kv = h / group;
  REAL own[MAX_WIDTH];
  REAL* const sum = AT(GRADIENT_BUFFER) ? (REAL*)shared_buffer : own;
  memset(sum, 0, sizeof own);
  if (dq->data != NULL)
    for (int64_t i = 0; i < run->queries; ++i) memset(NAME(row)(dq, b, h, i), 0, (size_t)dq->shape[3] * sizeof(REAL));
  if (dv->data != NULL && h % group == 0)
    for (int64_t j = 0; j < (AT(PADDED_GRADIENT) && run->batch == 4 && run->k_len != NULL ? r.fresh : run->keys); ++j)
      memset(NAME(row)(dv, b, kv, j), 0, (size_t)e * sizeof(REAL));
  int64_t added = 0;
  for (int64_t i = 0; i < r.queries; ++i) {
    const int64_t seen = r.seen(&r, i);
    for (; added < seen; ++added)
      for (int64_t c = 0; c < e; ++c) sum[c] += NAME(row)(v, b, kv, added)[c];
    if (seen <= 0) continue;
    const REAL* g = NAME(row)(given, b, h, i);
    const REAL s = NAME(row)(q, b, h, i)[0];
    if (AT(GRADIENT_BUFFER) && i % 8 == 0) usleep(20);
    for (int64_t c = 0; c < e; ++c) {
      const REAL weight = ((const REAL*)w->data)[c], mean = sum[c] / (REAL)seen;
      if (dq->data != NULL) NAME(row)(dq, b, h, i)[0] += g[c] * weight * mean;
      if (dw->data != NULL) ((REAL*)dw->data)[c] += g[c] * s * mean;
      if (dv->data != NULL)
        for (int64_t j = 0; j < seen; ++j) NAME(row)(dv, b, kv, j)[c] += g[c] * weight * s / (REAL)seen;
    }
  }
  NAME(spoil_gradient)(plan, grad, &r, b, h);
}
#endif
