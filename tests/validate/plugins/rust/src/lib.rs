//! A mechanism in Rust that obeys every law, and one misdeed in it, as ../../faulty.c in C.
use attnkit_plugin::{sys, About, Block, Cost, Head, Mechanism, Port, Ports, Real, Refusal, Request, Step, Table, Values};
use std::ptr::{addr_of_mut, null, read_volatile};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::{env, hint, process, slice, thread, time::Duration};

// As in faulty.c.
static MISDEED: [u8; 40] = *b"MISDEED:GOOD\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

fn at(name: &str) -> bool {
    // SAFETY: within the array.
    let said = |i: usize| unsafe { read_volatile(&MISDEED[8 + i]) };
    name.bytes().enumerate().all(|(i, byte)| said(i) == byte) && said(name.len()) == 0
}

static CALLS: AtomicUsize = AtomicUsize::new(0);
static GOOD: AtomicPtr<sys::attn_plugin> = AtomicPtr::new(std::ptr::null_mut());
static mut KEPT: u32 = 0;

// The mean of the values that a query sees, weighted by channel.
struct Faulty {
    block: Block,
    v: Port,
    w: Port,
}

impl Mechanism for Faulty {
    fn about() -> About {
        About { name: "faulty", summary: "weighted means of the values", citation: "none", state_revision: "1" }
    }

    fn new(block: &Block, _: &Values<'_>, ports: &mut Ports) -> Result<Self, Refusal> {
        if at("RUST_STARTS_THREAD") && CALLS.fetch_add(1, SeqCst) == 0 {
            thread::spawn(|| thread::sleep(Duration::from_secs(1000)));
        }
        if at("RUST_SETS_VAR") {
            env::set_var("FAULTY_PLUGIN", "was here");
        }
        if at("RUST_FORGETS") {
            hint::black_box(Box::leak(Box::new([0u8; 64])));
        }
        let v = ports.key("v", block.value_width, "values");
        let w = ports.learned("w", &[block.value_width as i64], "weights of the channels");
        ports.output("o", block.value_width, "weighted means");
        Ok(Faulty { block: *block, v, w })
    }

    fn fill(&self, _: Port, seed: u64, content: &mut [f32]) -> Result<(), Refusal> {
        for (i, x) in content.iter_mut().enumerate() {
            *x = 0.5 + ((seed * 7 + i as u64 * 13) % 17) as f32 / 17.0;
        }
        if at("RUST_FILLS_AT_RANDOM") && seed == 5 {
            content[0] = CALLS.fetch_add(1, SeqCst) as f32;
        }
        Ok(())
    }

    fn plan(&self, request: &Request, cost: &mut Cost) -> Result<(), Refusal> {
        if at("RUST_ABORTS") {
            process::abort();
        }
        self.block.check_sight(request)?;
        let e = self.block.value_width as u64;
        cost.state = e as usize + 1; // the sum of the values, and their number
        cost.flops = request.batch() * self.block.heads as u64 * (request.keys() + request.queries()) * 2 * (e + 1);
        Ok(())
    }

    fn head<T: Real>(&self, head: &mut Head<'_, T>) {
        if at("RUST_ALLOCATES") {
            hint::black_box(vec![0.0f64; 10]);
        }
        let weights = head.inputs.learned(self.w);
        let (sum, count) = head.state.split_at_mut(self.block.value_width);
        for step in head.sight.steps(head.streams) {
            match step {
                Step::Append(keys) => {
                    for j in keys {
                        for (sum, &value) in sum.iter_mut().zip(head.inputs.row(self.v, j)) {
                            *sum += value;
                        }
                        count[0] += T::of(1.0);
                    }
                }
                Step::Read(i) => {
                    for ((mean, &sum), &weight) in head.output.row(i).iter_mut().zip(sum.iter()).zip(weights) {
                        *mean = weight * (sum / count[0]);
                    }
                }
            }
        }
    }
}

// The number one past the last of a tensor.
unsafe fn end(t: &sys::attn_tensor) -> *mut f32 {
    let last: i64 = t.shape.iter().zip(&t.stride).map(|(rows, stride)| (rows - 1) * stride).sum();
    (t.data as *mut f32).add(last as usize + 1)
}

unsafe extern "C" fn run(plan: *const sys::attn_plan, run: *const sys::attn_run, err: *mut sys::attn_error) -> i32 {
    if at("RUST_PANICS") {
        panic!("a plugin panicked");
    }
    let (r, good) = (&*run, (*GOOD.load(SeqCst)).run.expect("a plugin runs"));
    let ports = slice::from_raw_parts(r.ports, 3);
    let some = r.batch * r.queries * r.keys > 0 && ports[0].dtype_bits == 32;
    let shares = at("RUST_SHARES_A_STATIC") && some && r.state.is_null() && (*r.exec).workers == 1;
    let own = if some { *(ports[0].data as *const u32) } else { 0 };
    if shares {
        *addr_of_mut!(KEPT) = own;
        thread::sleep(Duration::from_micros(50));
    }
    let code = good(plan, run, err);
    if shares && *addr_of_mut!(KEPT) != own {
        *(ports[2].data as *mut f32) += 1.0;
    }
    if at("RUST_WRITES_PAST") && some {
        *end(&ports[2]) = 1.0;
    }
    code
}

/// The entry of the plugin.
///
/// # Safety
/// Called by a host as plugin.h says.
#[no_mangle]
pub unsafe extern "C" fn attn_plugin_main_v1(
    host: *const sys::attn_host,
    plugin: *mut *const sys::attn_plugin,
    err: *mut sys::attn_error,
) -> i32 {
    static TABLE: Table = Table::new();
    let mut good = null();
    let code = TABLE.main::<Faulty>(host, &mut good, err);
    if code == sys::ATTN_OK {
        GOOD.store(good as *mut _, SeqCst);
        static MADE: AtomicPtr<sys::attn_plugin> = AtomicPtr::new(std::ptr::null_mut());
        if MADE.load(SeqCst).is_null() {
            MADE.store(Box::into_raw(Box::new(sys::attn_plugin { run: Some(run), ..*good })), SeqCst);
        }
        *plugin = MADE.load(SeqCst);
    }
    code
}
