//! One mechanism by itself: for bridges, benchmarks, validators.
use crate::call::{c_text, call, string, Handle};
use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::tensor::Tensor;
use attnkit_sys as sys;
use std::ptr::{null, null_mut};
use std::slice;

/// The role of a block in a transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Self attention of the encoder.
    EncoderSelf = sys::ATTN_ENCODER_SELF as isize,
    /// Self attention of the decoder.
    DecoderSelf = sys::ATTN_DECODER_SELF as isize,
    /// Cross attention of the decoder.
    DecoderCross = sys::ATTN_DECODER_CROSS as isize,
}

/// The place of a block; see attn_block.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its place.
    pub role: Role,
    /// A query sees keys at its position and before.
    pub causal: bool,
    /// Heads; they divide `d_model`.
    pub heads: u32,
    /// Width of the model.
    pub d_model: i32,
    /// Width of a value in a head; 0: that of a key.
    pub head_width: i32,
    /// Heads of keys and values, a divisor of `heads`; 0: `heads`.
    pub kv_heads: u32,
    /// Width of a query and a key in a head; 0: `d_model / heads`.
    pub key_width: i32,
}

/// One tensor that every run takes or gives; see attn_port.
#[derive(Clone, Debug)]
pub struct Port {
    /// ATTN_QUERY, ...
    pub kind: u32,
    /// ATTN_RAW, ...
    pub flags: u32,
    /// The type of LEARNED, TABLE and AUX: code of DLPack and bits; 0: the run's.
    pub dtype: (u8, u8),
    /// Unique, but that an AUX_IN and an AUX_OUT may share one.
    pub name: String,
    /// Its description.
    pub doc: String,
    /// 0 where the run decides.
    pub shape: Vec<i64>,
}

/// Upper bounds of runs on the CPU; see attn_request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// ATTN_STREAM, ...
    pub flags: u32,
    /// 64-bit numbers, not 32.
    pub double: bool,
    /// Threads that a run may use; at least the runtime's.
    pub workers: u32,
    /// Rows of the batch.
    pub batch: i64,
    /// Queries of a run.
    pub queries: i64,
    /// Keys of a run.
    pub keys: i64,
    /// Keys already in the state.
    pub past: i64,
}

impl Request {
    /// One run of a whole sequence on one row, by a runtime of `workers` threads.
    pub fn whole(workers: u32, queries: i64, keys: i64) -> Self {
        Request { flags: 0, double: false, workers, batch: 1, queries, keys, past: 0 }
    }

    /// Runs of one query and one key on one row with a state for `capacity` keys.
    pub fn step(workers: u32, capacity: i64) -> Self {
        Request { flags: sys::ATTN_STREAM, double: false, workers, batch: 1, queries: 1, keys: 1, past: capacity - 1 }
    }

    fn raw(&self) -> sys::attn_request {
        sys::attn_request {
            flags: self.flags,
            device_type: 1,
            dtype_code: 2,
            dtype_bits: if self.double { 64 } else { 32 },
            dtype_lanes: 1,
            workers: self.workers,
            batch: self.batch,
            queries: self.queries,
            keys: self.keys,
            past: self.past,
            ..Default::default()
        }
    }
}

/// The needs and costs of runs; see attn_info.
pub type Info = sys::attn_info;

/// Rows of bytes that begin at multiples of ATTN_ALIGN, zero at first: the state of a block, or what backward needs.
pub struct Aligned {
    memory: Vec<Line>,
    rows: usize,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

impl Aligned {
    /// `rows` rows of at least `bytes` bytes.
    pub fn new(rows: usize, bytes: u64) -> Self {
        let lines = (bytes as usize + 63) / 64;
        Aligned { memory: vec![Line([0; 64]); rows * lines.max(1)], rows }
    }

    /// From one row to the next.
    pub fn stride(&self) -> usize {
        64 * self.memory.len() / self.rows.max(1)
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: lines are bytes.
        unsafe { slice::from_raw_parts(self.memory.as_ptr().cast(), 64 * self.memory.len()) }
    }

    /// All bytes; copying those of a row copies its past.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), 64 * self.memory.len()) }
    }
}

/// One run; see attn_run. What is `None` or empty is absent. Per-row values have an entry for each row of the batch.
#[derive(Default)]
pub struct Run<'a> {
    /// Rows of this batch, its queries and keys.
    pub sizes: (i64, i64, i64),
    /// One for each port, in their order.
    pub ports: Vec<Tensor<'a>>,
    /// Queries that are real.
    pub q_len: Option<&'a [i32]>,
    /// Keys that are real.
    pub k_len: Option<&'a [i32]>,
    /// Queries before this run.
    pub q_pos: Option<&'a [i32]>,
    /// Keys before this run.
    pub k_pos: Option<&'a [i32]>,
    /// Length of the whole query sequence.
    pub q_total: Option<&'a [f64]>,
    /// Length of the whole key sequence.
    pub k_total: Option<&'a [f64]>,
    /// The number of keys that each query sees, (batch, queries).
    pub visible: Option<&'a [i32]>,
    /// The state of the rows.
    pub state: Option<&'a mut Aligned>,
    /// Which row of the state a row of the batch uses; absent: its own number.
    pub slots: Option<&'a [i32]>,
    /// The memory that backward needs, under ATTN_TRAIN.
    pub saved: Option<&'a mut Aligned>,
}

/// One mechanism by itself.
#[derive(Debug)]
pub struct Block {
    handle: Handle<sys::attnkit_block>,
    ports: Vec<Port>,
}

// SAFETY: "block: any thread, any number of calls at once".
unsafe impl Send for Block {}
unsafe impl Sync for Block {}

impl Block {
    /// A mechanism in a block; options: an inline table's content such as "guard = 'add', eps = 1e-6", or "".
    pub fn new(runtime: &Runtime, mechanism: &str, place: Place, options: &str) -> Result<Self> {
        let (name, options) = (c_text(mechanism, "the mechanism")?, c_text(options, "the options")?);
        // The library refuses a width that is none.
        let shared = (i64::from(place.d_model) / i64::from(place.heads.max(1))) as i32;
        let width = if place.key_width == 0 { shared } else { place.key_width };
        let place = sys::attn_block {
            role: place.role as u32,
            causal: place.causal as u32,
            heads: place.heads,
            d_model: place.d_model,
            head_width: if place.head_width == 0 { width } else { place.head_width },
            kv_heads: place.kv_heads,
            key_width: place.key_width,
            ..Default::default()
        };
        let make = |to, err| unsafe {
            sys::attnkit_block_create(runtime.0.get(), name.as_ptr(), &place, options.as_ptr(), to, err)
        };
        let handle = Handle::make(sys::attnkit_block_destroy, make)?;
        let mut n = 0;
        // SAFETY: n pointers to ports that are there as long as the block.
        let declared = unsafe {
            let first = sys::attnkit_block_ports(handle.get(), &mut n);
            slice::from_raw_parts(first, n as usize).iter().map(|&port| &*port)
        };
        let ports = declared.map(|p| Port {
            kind: p.kind,
            flags: p.flags,
            dtype: (p.dtype_code, p.dtype_bits),
            name: string(p.name),
            doc: string(p.doc),
            shape: p.shape[..p.ndim as usize].to_vec(),
        });
        Ok(Block { ports: ports.collect(), handle })
    }

    /// The tensors that every run takes and gives, in the order of [`Run::ports`].
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Writes the initial content of a LEARNED or TABLE port.
    pub fn fill(&self, port: usize, seed: u64, tensor: &mut Tensor<'_>) -> Result<()> {
        writable(tensor, "the tensor")?;
        if port >= self.ports.len() {
            return Err(Error::invalid(format!("port {} of {}", port, self.ports.len())));
        }
        call(|err| unsafe { sys::attnkit_block_fill(self.handle.get(), port as u32, seed, &tensor.raw, err) })
    }

    /// Whether the mechanism takes runs within these bounds, and what they need.
    pub fn plan(&self, request: &Request) -> Result<Info> {
        let mut info = Info::default();
        call(|err| unsafe { sys::attnkit_block_plan(self.handle.get(), &request.raw(), &mut info, err) })?;
        Ok(info)
    }

    /// Computes one run within the request.
    pub fn run(&self, request: &Request, run: &mut Run<'_>) -> Result<()> {
        self.with(request, run, |raw, request, err| unsafe { sys::attnkit_block_run(self.handle.get(), request, raw, err) })
    }

    /// The gradients of a run under ATTN_TRAIN, by port: those of the outputs are given, the others written, of LEARNED
    /// ports added; absent ones are not computed.
    ///
    /// # Safety
    /// [`Run::saved`] holds what [`Block::run`] of this block wrote for the same request and run, unchanged: a mechanism
    /// trusts what it finds there.
    #[warn(unsafe_op_in_unsafe_fn)]
    pub unsafe fn backward(&self, request: &Request, run: &mut Run<'_>, grads: &mut [Tensor<'_>]) -> Result<()> {
        if grads.len() != self.ports.len() {
            return Err(Error::invalid(format!("{} gradients for {} ports", grads.len(), self.ports.len())));
        }
        for (port, grad) in self.ports.iter().zip(grads.iter()) {
            if port.kind != sys::ATTN_OUTPUT && port.kind != sys::ATTN_AUX_OUT {
                writable(grad, &port.name)?;
            }
        }
        let grads: Vec<_> = grads.iter().map(|t| t.raw).collect();
        self.with(request, run, |raw, request, err| {
            let grad = sys::attn_grad { run: raw, grads: grads.as_ptr(), ..Default::default() };
            unsafe { sys::attnkit_block_backward(self.handle.get(), request, &grad, err) }
        })
    }

    fn with(
        &self,
        request: &Request,
        run: &mut Run<'_>,
        f: impl FnOnce(&sys::attn_run, &sys::attn_request, *mut sys::attn_error) -> i32,
    ) -> Result<()> {
        let (batch, queries, keys) = run.sizes;
        if run.ports.len() != self.ports.len() {
            return Err(Error::invalid(format!("{} tensors for {} ports", run.ports.len(), self.ports.len())));
        }
        for (port, tensor) in self.ports.iter().zip(&run.ports) {
            if port.kind == sys::ATTN_OUTPUT || port.kind == sys::ATTN_AUX_OUT {
                writable(tensor, &port.name)?;
            }
        }
        let each = |n: usize, what: &str, wanted: i64| match n as i64 == wanted {
            true => Ok(()),
            false => Err(Error::invalid(format!("{} has {} entries, {} are needed", what, n, wanted))),
        };
        let ints = [("q_len", run.q_len), ("k_len", run.k_len), ("q_pos", run.q_pos), ("k_pos", run.k_pos), ("slots", run.slots)];
        for (what, values) in ints {
            values.map_or(Ok(()), |v| each(v.len(), what, batch))?;
        }
        for (what, values) in [("q_total", run.q_total), ("k_total", run.k_total)] {
            values.map_or(Ok(()), |v| each(v.len(), what, batch))?;
        }
        run.visible.map_or(Ok(()), |v| each(v.len(), "visible", batch.saturating_mul(queries)))?;
        if let Some(state) = &run.state {
            slots(run.slots, state.rows, batch, keys)?;
        }
        if request.flags & sys::ATTN_TRAIN != 0 {
            let (needed, room) = (self.plan(request)?.saved_bytes, run.saved.as_ref().map_or(0, |s| s.bytes().len()));
            if (room as u64) < needed {
                return Err(Error::invalid(format!("saved has {} bytes, the plan needs {}", room, needed)));
            }
        }
        let tensors: Vec<_> = run.ports.iter().map(|t| t.raw).collect();
        let ints = |values: Option<&[i32]>| values.map_or(null(), <[i32]>::as_ptr);
        let reals = |values: Option<&[f64]>| values.map_or(null(), <[f64]>::as_ptr);
        let raw = sys::attn_run {
            batch,
            queries,
            keys,
            ports: tensors.as_ptr(),
            q_len: ints(run.q_len),
            k_len: ints(run.k_len),
            q_pos: ints(run.q_pos),
            k_pos: ints(run.k_pos),
            q_total: reals(run.q_total),
            k_total: reals(run.k_total),
            visible: ints(run.visible),
            state_stride: run.state.as_ref().map_or(0, |s| s.stride() as u64),
            state: run.state.as_mut().map_or(null_mut(), |s| s.bytes_mut().as_mut_ptr().cast()),
            slots: ints(run.slots),
            saved: run.saved.as_mut().map_or(null_mut(), |s| s.bytes_mut().as_mut_ptr().cast()),
            ..Default::default()
        };
        call(|err| f(&raw, &request.raw(), err))
    }
}

fn writable(tensor: &Tensor<'_>, what: &str) -> Result<()> {
    if tensor.writable {
        return Ok(());
    }
    Err(Error::invalid(format!("port \"{}\" is written to: its tensor must be made by new_mut or strided_mut", what)))
}

// Which rows of a state are used; the library does not check it.
fn slots(slots: Option<&[i32]>, rows: usize, batch: i64, keys: i64) -> Result<()> {
    // Before a row is counted: of a batch that nothing has checked there is no list.
    if slots.is_none() && batch > rows as i64 {
        return Err(Error::invalid(format!("a batch of {} for a state with {} rows: each row needs one", batch, rows)));
    }
    let mut used: Vec<i64> = match slots {
        Some(slots) => slots.iter().map(|&slot| slot.into()).collect(),
        None => (0..batch).collect(),
    };
    used.sort_unstable();
    if used.first().map_or(false, |&first| first < 0) || used.last().map_or(false, |&last| last >= rows as i64) {
        return Err(Error::invalid(format!("slots {:?} of a state with {} rows", used, rows)));
    }
    if keys > 0 && used.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid(format!("slots {:?}: rows that append keys share no slot", used)));
    }
    Ok(())
}
