//! The table of plugin.h for a mechanism, and the functions in it.
use crate::describe::{Block, Cost, Port, Ports, Refusal, Request, Value, Values};
use crate::head::{Gradient, Head, Inputs, Output, Real, Sight};
use crate::Mechanism;
use attnkit_sys as sys;
use std::ffi::CString;
use std::mem::size_of;
use std::os::raw::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The table of one library; made once and kept until the process ends.
pub struct Table(AtomicPtr<sys::attn_plugin>);

struct Made<M> {
    mechanism: M,
    ports: Ports,
    list: Vec<*const sys::attn_port>,
    block: Block,
    output: usize,
}

struct Planned<M> {
    made: *const Made<M>,
    cost: Cost,
    flops: f64, // of one head of one row
    double: bool,
}

fn aligned(bytes: usize) -> usize {
    (bytes + sys::ATTN_ALIGN as usize - 1) / sys::ATTN_ALIGN as usize * sys::ATTN_ALIGN as usize
}

fn text(text: &'static str) -> *const c_char {
    CString::new(text).expect("texts of a plugin hold no NUL").into_raw() // kept until the process ends
}

// Runs f; a refusal, and a panic, becomes a code and a message.
unsafe fn guarded(err: *mut sys::attn_error, f: impl FnOnce() -> Result<(), Refusal>) -> i32 {
    let refusal = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => return sys::ATTN_OK,
        Ok(Err(refusal)) => refusal,
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
            Refusal::internal(format!("the plugin panicked: {}", said.unwrap_or("no message")))
        }
    };
    let room = size_of::<sys::attn_error>();
    if !err.is_null() && (*err).struct_size as usize >= room {
        let e = &mut *err;
        e.code = refusal.code;
        e.r#where = refusal.place;
        let mut n = refusal.message.len().min(e.message.len() - 1);
        while !refusal.message.is_char_boundary(n) {
            n -= 1;
        }
        for (to, from) in e.message.iter_mut().zip(refusal.message.as_bytes()[..n].iter().chain(Some(&0))) {
            *to = *from as c_char;
        }
    }
    refusal.code
}

impl Table {
    /// One that was not asked for yet.
    pub const fn new() -> Self {
        Table(AtomicPtr::new(null_mut()))
    }

    /// The entry of a plugin.
    ///
    /// # Safety
    /// Called by a host as plugin.h says.
    pub unsafe fn main<M: Mechanism>(
        &self,
        host: *const sys::attn_host,
        plugin: *mut *const sys::attn_plugin,
        err: *mut sys::attn_error,
    ) -> i32 {
        guarded(err, || {
            if sys::ATTN_ABI_MINOR < (*host).oldest_plugin_minor {
                return Err(Refusal::unsupported(format!(
                    "this plugin was built for ABI 1.{}, this host needs 1.{}: rebuild the plugin",
                    sys::ATTN_ABI_MINOR,
                    (*host).oldest_plugin_minor
                )));
            }
            if self.0.load(Ordering::Acquire).is_null() {
                self.0.store(Box::into_raw(Box::new(make::<M>())), Ordering::Release);
            }
            *plugin = self.0.load(Ordering::Acquire);
            Ok(())
        })
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

fn make<M: Mechanism>() -> sys::attn_plugin {
    let about = M::about();
    let options: Vec<*const sys::attn_option> = M::options().into_iter().map(|choice| option(&choice)).collect();
    sys::attn_plugin {
        abi_minor: sys::ATTN_ABI_MINOR,
        device_type: 1,
        name: text(about.name),
        summary: text(about.summary),
        citation: text(about.citation),
        state_revision: text(about.state_revision),
        n_options: options.len() as u32,
        options: Box::leak(options.into_boxed_slice()).as_ptr(),
        create: Some(create::<M>),
        destroy: Some(destroy::<M>),
        fill: Some(fill::<M>),
        plan: Some(plan::<M>),
        plan_free: Some(plan_free::<M>),
        run: Some(run::<M>),
        backward: if M::GRADIENTS { Some(backward::<M>) } else { None },
        ..Default::default()
    }
}

fn option(choice: &crate::describe::Choice) -> *const sys::attn_option {
    let mut made =
        sys::attn_option { name: text(choice.name), doc: text(choice.doc), ..Default::default() };
    let fallback = &mut made.fallback;
    match choice.value {
        Value::Integer(default, min, max) => {
            fallback.r#type = sys::ATTN_INT;
            fallback.i = default;
            made.min = min as f64;
            made.max = max as f64;
        }
        Value::Real(default, min, max) => {
            fallback.r#type = sys::ATTN_FLOAT;
            fallback.f = default;
            made.min = min;
            made.max = max;
        }
        Value::Boolean(default) => {
            fallback.r#type = sys::ATTN_BOOL;
            fallback.i = default.into();
        }
        Value::Text(default, choices) => {
            fallback.r#type = sys::ATTN_TEXT;
            fallback.s = text(default);
            let texts: Vec<*const c_char> = choices.iter().map(|choice| text(choice)).collect();
            made.n_choices = texts.len() as u32;
            made.choices = Box::leak(texts.into_boxed_slice()).as_ptr();
        }
    }
    Box::into_raw(Box::new(made))
}

unsafe extern "C" fn create<M: Mechanism>(
    block: *const sys::attn_block,
    values: *const sys::attn_value,
    mech: *mut *mut sys::attn_mech,
    ports: *mut *const *const sys::attn_port,
    n_ports: *mut u32,
    err: *mut sys::attn_error,
) -> i32 {
    guarded(err, || {
        let mut b = sys::attn_block::default();
        copy(block as *const u8, &mut b as *mut _ as *mut u8, (*block).struct_size as usize, size_of_val(&b));
        let block = Block {
            role: b.role,
            causal: b.causal != 0,
            heads: b.heads as usize,
            width: if b.key_width == 0 { b.d_model / b.heads as i32 } else { b.key_width } as usize,
            value_width: b.head_width as usize,
        };
        let n = M::options().len();
        let values = if n == 0 { &[] } else { slice::from_raw_parts(values, n) };
        let mut declared = Ports::new(block.heads);
        let mechanism = M::new(&block, &Values(values), &mut declared)?;
        let output = declared.list.iter().position(|p| p.kind == sys::ATTN_OUTPUT);
        let output = output.ok_or_else(|| Refusal::internal("the mechanism declares no output"))?;
        let mut made = Box::new(Made { mechanism, ports: declared, list: Vec::new(), block, output });
        made.list = made.ports.list.iter().map(|port| port as *const _).collect();
        *ports = made.list.as_ptr();
        *n_ports = made.list.len() as u32;
        *mech = Box::into_raw(made).cast();
        Ok(())
    })
}

unsafe extern "C" fn destroy<M: Mechanism>(mech: *mut sys::attn_mech) {
    if !mech.is_null() {
        freed(mech as *mut Made<M>);
    }
}

unsafe extern "C" fn fill<M: Mechanism>(
    mech: *const sys::attn_mech,
    port: u32,
    seed: u64,
    tensor: *const sys::attn_tensor,
    err: *mut sys::attn_error,
) -> i32 {
    guarded(err, || {
        let made = &*(mech as *const Made<M>);
        let declared = made.ports.list.get(port as usize);
        let stored = declared.filter(|p| p.kind == sys::ATTN_LEARNED || p.kind == sys::ATTN_TABLE);
        let shape = match stored {
            Some(p) => &p.shape[..p.ndim as usize],
            None => return Err(Refusal::invalid(format!("port {} is not stored: it has no initial content", port))),
        };
        let n: i64 = shape.iter().product();
        made.mechanism.fill(Port(port as usize), seed, slice::from_raw_parts_mut((*tensor).data as *mut f32, n as usize))
    })
}

// Refuses what no mechanism of this crate does.
fn check_request<M: Mechanism>(r: &sys::attn_request, ports: &Ports) -> Result<(), Refusal> {
    let has = |flag| r.flags & flag != 0;
    if r.device_type != 1 {
        return Err(Refusal::unsupported(format!(
            "this library runs on device type 1 and was asked for {}: load the variant of the mechanism for that device",
            r.device_type
        )));
    }
    if has(sys::ATTN_TRAIN) && !M::GRADIENTS {
        return Err(Refusal::unsupported("it has no backward pass yet: run it without ATTN_TRAIN"));
    }
    if has(sys::ATTN_TRAIN) && ports.list.iter().any(|port| port.kind == sys::ATTN_LEARNED) {
        return Err(Refusal::unsupported("gradients of LEARNED ports are not offered: run it without ATTN_TRAIN"));
    }
    if has(sys::ATTN_TRAIN) && has(sys::ATTN_STREAM) {
        return Err(Refusal::unsupported("gradients are of whole sequences: plan without ATTN_STREAM to train"));
    }
    match (r.dtype_code, r.dtype_bits) {
        (2, 32) => Ok(()),
        (2, 64) if M::GRADIENTS && !has(sys::ATTN_STREAM) => Ok(()),
        (2, 64) if M::GRADIENTS => {
            Err(Refusal::unsupported("its f64 form is of whole sequences, to check gradients with: stream in f32"))
        }
        (code, bits) => Err(Refusal::unsupported(format!(
            "it computes in f32 and was asked for {}-bit elements of DLPack code {}: run this block in f32",
            bits, code
        ))),
    }
}

unsafe extern "C" fn plan<M: Mechanism>(
    mech: *const sys::attn_mech,
    request: *const sys::attn_request,
    info: *mut sys::attn_info,
    plan: *mut *mut sys::attn_plan,
    err: *mut sys::attn_error,
) -> i32 {
    guarded(err, || {
        let made = &*(mech as *const Made<M>);
        let mut known = sys::attn_request::default();
        copy(request as *const u8, &mut known as *mut _ as *mut u8, (*request).struct_size as usize, size_of_val(&known));
        check_request::<M>(&known, &made.ports)?;
        let request = Request(known);
        let mut cost = Cost::default();
        made.mechanism.plan(&request, &mut cost)?;
        let (double, heads) = (known.dtype_bits == 64, made.block.heads as u64);
        let number = if double { 8 } else { 4 };
        let each = worker_bytes(&cost, number) as u64;
        let mut answer = sys::attn_info {
            flops: cost.flops,
            scratch_bytes: each * u64::from(known.workers),
            backward_scratch_bytes: if request.trains() { each * u64::from(known.workers) } else { 0 },
            ..Default::default()
        };
        if request.streams() {
            answer.state_bytes = aligned(4 * cost.state * made.block.heads) as u64;
            let kept = 4 * request.batch() * heads * cost.state as u64;
            answer.bytes_read += kept;
            answer.bytes_written += if request.keys() > 0 { kept } else { 0 };
        }
        for port in &made.ports.list {
            let sequence = port.kind <= sys::ATTN_OUTPUT;
            let rows = if port.kind == sys::ATTN_KEY { known.keys } else { known.queries };
            let any = known.batch > 0 && known.queries + known.keys > 0;
            let elements = match sequence {
                true => known.batch * port.shape[1] * rows * port.shape[3],
                false => any as i64 * port.shape[..port.ndim as usize].iter().product::<i64>(),
            };
            let bytes = elements as u64 * if port.kind == sys::ATTN_TABLE { 4 } else { number as u64 };
            if port.kind == sys::ATTN_OUTPUT {
                answer.bytes_written += bytes;
            } else {
                answer.bytes_read += bytes;
            }
        }
        if !plan.is_null() {
            let flops = cost.flops as f64 / (request.batch() * heads).max(1) as f64;
            *plan = Box::into_raw(Box::new(Planned { made, cost, flops, double })).cast();
        }
        if !info.is_null() {
            let size = (*info).struct_size;
            copy(&answer as *const _ as *const u8, info as *mut u8, size as usize, size_of_val(&answer));
            (*info).struct_size = size;
        }
        Ok(())
    })
}

// The part of a struct that both sides know.
unsafe fn copy(from: *const u8, to: *mut u8, theirs: usize, ours: usize) {
    std::ptr::copy_nonoverlapping(from, to, theirs.min(ours));
}

fn size_of_val<T>(_: &T) -> usize {
    size_of::<T>()
}

unsafe extern "C" fn plan_free<M: Mechanism>(plan: *mut sys::attn_plan) {
    if !plan.is_null() {
        freed(plan as *mut Planned<M>);
    }
}

// A panic has nowhere to go from here: the host's call returns nothing.
unsafe fn freed<T>(made: *mut T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(made)))) {
        std::mem::forget(panic); // which may panic again when it is dropped
    }
}

fn worker_bytes(cost: &Cost, number: usize) -> usize {
    aligned(number * cost.state) + aligned(number * cost.scratch)
}

// One run or gradient, shared by all workers.
struct Job<'a, M> {
    planned: &'a Planned<M>,
    run: &'a sys::attn_run,
    exec: &'a sys::attn_exec,
    ports: &'a [sys::attn_tensor],
    grads: Option<&'a [sys::attn_tensor]>,
    panicked: AtomicBool,
}

impl<'a, M: Mechanism> Job<'a, M> {
    fn made(&self) -> &'a Made<M> {
        // SAFETY: the mechanism outlives its plans.
        unsafe { &*self.planned.made }
    }

    fn go(&self) -> Result<(), Refusal> {
        const WORTH_A_THREAD: f64 = 2e5;
        let grain = (WORTH_A_THREAD / self.planned.flops.max(1.0)) as i64 + 1;
        let n = self.run.batch * self.made().block.heads as i64;
        let arg = self as *const Self as usize;
        // SAFETY: the job lives until the loop is done.
        match self.exec.parallel_for {
            Some(parallel_for) if self.exec.workers > 1 && n > grain => unsafe {
                parallel_for(self.exec.pool, n, grain, Some(task::<M>), arg)
            },
            _ if n > 0 => unsafe { task::<M>(arg, 0, n, 0) },
            _ => (),
        }
        match self.panicked.load(Ordering::Relaxed) {
            true => Err(Refusal::internal("the plugin panicked while it computed a head")),
            false => Ok(()),
        }
    }

    // SAFETY: worker is nobody else's, and (b, h) neither.
    unsafe fn one<T: Real>(&self, item: usize, worker: usize) {
        let made = self.made();
        let (b, h) = (item / made.block.heads, item % made.block.heads);
        let cost = &self.planned.cost;
        let sight = Sight::of(self.run, b, made.block.causal);
        let memory = (self.exec.scratch as *mut u8).add(worker * worker_bytes(cost, size_of::<T>()));
        let part = |first: *mut u8, n: usize| match n {
            0 => &mut [][..],
            n => slice::from_raw_parts_mut(first as *mut T, n),
        };
        let scratch = part(memory.add(aligned(size_of::<T>() * cost.state)), cost.scratch);
        if let Some(grads) = self.grads {
            let run = Inputs::new(self.ports, &made.ports.list, |_| false, b, h);
            let given = Inputs::new(grads, &made.ports.list, |kind| kind != sys::ATTN_OUTPUT, b, h);
            let mut gradient = Gradient { sight, run, given, scratch, tensors: grads, place: (b, h) };
            return made.mechanism.gradient::<T>(&mut gradient);
        }
        let streams = !self.run.state.is_null();
        let state = if streams {
            let slot = if self.run.slots.is_null() { b } else { *self.run.slots.add(b) as usize };
            let row = (self.run.state as *mut u8).add(slot * self.run.state_stride as usize);
            part(row.add(size_of::<T>() * h * cost.state), cost.state)
        } else {
            let fresh = part(memory, cost.state);
            fresh.fill(T::default());
            fresh
        };
        let total = |values: *const f64| if values.is_null() { None } else { Some(*values.add(b)) };
        let mut head = Head {
            sight,
            inputs: Inputs::new(self.ports, &made.ports.list, |kind| kind == sys::ATTN_OUTPUT, b, h),
            output: Output::new(&self.ports[made.output], b, h),
            state,
            streams,
            scratch,
            head: h,
            totals: (total(self.run.q_total), total(self.run.k_total)),
        };
        made.mechanism.head::<T>(&mut head);
        head.output.clear(|i| i >= sight.queries || sight.seen(i) == 0);
    }
}

unsafe extern "C" fn task<M: Mechanism>(arg: usize, begin: i64, end: i64, worker: u32) {
    let job = &*(arg as *const Job<'_, M>);
    let all = AssertUnwindSafe(|| {
        for item in begin as usize..end as usize {
            if job.planned.double {
                job.one::<f64>(item, worker as usize);
            } else {
                job.one::<f32>(item, worker as usize);
            }
        }
    });
    if catch_unwind(all).is_err() {
        job.panicked.store(true, Ordering::Relaxed);
    }
}

unsafe fn tensors<'a, M>(planned: &Planned<M>, first: *const sys::attn_tensor) -> &'a [sys::attn_tensor] {
    slice::from_raw_parts(first, (*planned.made).list.len())
}

unsafe extern "C" fn run<M: Mechanism>(
    plan: *const sys::attn_plan,
    run: *const sys::attn_run,
    err: *mut sys::attn_error,
) -> i32 {
    guarded(err, || {
        let (planned, run) = (&*(plan as *const Planned<M>), &*run);
        let ports = tensors(planned, run.ports);
        Job { planned, run, exec: &*run.exec, ports, grads: None, panicked: AtomicBool::new(false) }.go()
    })
}

unsafe extern "C" fn backward<M: Mechanism>(
    plan: *const sys::attn_plan,
    grad: *const sys::attn_grad,
    err: *mut sys::attn_error,
) -> i32 {
    guarded(err, || {
        let (planned, grad) = (&*(plan as *const Planned<M>), &*grad);
        let run = &*grad.run;
        let (ports, grads) = (tensors(planned, run.ports), tensors(planned, grad.grads));
        for (port, t) in (*planned.made).ports.list.iter().zip(grads) {
            if t.data.is_null() || port.kind > sys::ATTN_KEY {
                continue;
            }
            for (b, h) in (0..t.shape[0] as usize).flat_map(|b| (0..t.shape[1] as usize).map(move |h| (b, h))) {
                if planned.double {
                    Output::<f64>::new(t, b, h).clear(|_| true);
                } else {
                    Output::<f32>::new(t, b, h).clear(|_| true);
                }
            }
        }
        Job { planned, run, exec: &*run.exec, ports, grads: Some(grads), panicked: AtomicBool::new(false) }.go()
    })
}
