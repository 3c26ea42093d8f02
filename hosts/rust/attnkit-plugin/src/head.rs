//! One head of one row of the batch: what it sees, reads and writes.
use crate::describe::Port;
use attnkit_sys as sys;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Range, Sub};
use std::slice;

/// f32, and f64 under an f64 plan.
pub trait Real:
    Copy
    + Default
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
    + 'static
{
    /// The nearest number.
    fn of(value: f64) -> Self;
    /// As f64.
    fn double(self) -> f64;
}

macro_rules! real {
    ($t:ty) => {
        impl Real for $t {
            fn of(value: f64) -> Self {
                value as $t
            }
            fn double(self) -> f64 {
                self.into()
            }
        }
    };
}
real!(f32);
real!(f64);

/// Which keys a row knows and its queries see.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// Queries of this run that are real.
    pub queries: usize,
    /// Keys of this run that are real.
    pub fresh: usize,
    /// Keys that the state holds.
    pub past: usize,
    /// Queries before this run.
    pub position: usize,
    visible: Option<&'a [i32]>,
    causal: bool,
}

/// One step of a recurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Take in these keys of the run.
    Append(Range<usize>),
    /// Answer this query.
    Read(usize),
}

impl<'a> Sight<'a> {
    /// That of row b of a run.
    ///
    /// # Safety
    /// The arrays of the run are as plugin.h says.
    pub unsafe fn of(run: &'a sys::attn_run, b: usize, causal: bool) -> Self {
        let at = |values: *const i32, all: i64| if values.is_null() { all as usize } else { *values.add(b) as usize };
        let n = run.queries as usize;
        Sight {
            queries: at(run.q_len, run.queries),
            fresh: at(run.k_len, run.keys),
            past: at(run.k_pos, 0),
            position: at(run.q_pos, 0),
            visible: (!run.visible.is_null()).then(|| slice::from_raw_parts(run.visible.add(b * n), n)),
            causal,
        }
    }

    /// The number of keys that query i sees, past ones included.
    pub fn seen(&self, i: usize) -> usize {
        let all = self.past + self.fresh;
        match self.visible {
            Some(visible) => all.min(visible[i] as usize),
            None if self.causal => all.min(self.position + i + 1),
            None => all,
        }
    }

    /// The order in which a recurrence computes: the keys that a query is the first to see, then the query; keys that no
    /// query sees only if `all`, because a state keeps them.
    pub fn steps(self, all: bool) -> impl Iterator<Item = Step> + 'a {
        let (mut appended, mut i, mut asked) = (0, 0, false);
        std::iter::from_fn(move || loop {
            if i >= self.queries {
                if !all || appended >= self.fresh {
                    return None;
                }
                let from = std::mem::replace(&mut appended, self.fresh);
                return Some(Step::Append(from..self.fresh));
            }
            let limit = self.seen(i).saturating_sub(self.past);
            if self.seen(i) > 0 && !asked && appended < limit {
                asked = true;
                let from = std::mem::replace(&mut appended, limit);
                return Some(Step::Append(from..limit));
            }
            asked = false;
            i += 1;
            if self.seen(i - 1) > 0 {
                return Some(Step::Read(i - 1));
            }
        })
    }
}

/// The tensors that a head reads, by port.
#[derive(Clone, Copy)]
pub struct Inputs<'a, T> {
    tensors: &'a [sys::attn_tensor],
    ports: &'a [sys::attn_port],
    writes: fn(u32) -> bool, // whether the call writes ports of a kind: another worker may be at it
    b: usize,
    h: usize,
    elements: PhantomData<T>,
}

impl<'a, T: Real> Inputs<'a, T> {
    pub(crate) fn new(
        tensors: &'a [sys::attn_tensor],
        ports: &'a [sys::attn_port],
        writes: fn(u32) -> bool,
        b: usize,
        h: usize,
    ) -> Self {
        Inputs { tensors, ports, writes, b, h, elements: PhantomData }
    }

    // The tensor of a port, to read numbers of type N from.
    fn tensor<N>(&self, port: Port) -> &'a sys::attn_tensor {
        let t = &self.tensors[port.0];
        assert!(!(self.writes)(self.ports[port.0].kind), "port {} is written by this call, it cannot be read", port.0);
        assert!(!t.data.is_null(), "port {} has no tensor in this call", port.0);
        let bits = 8 * size_of::<N>();
        assert!(t.dtype_bits as usize == bits, "port {} has {}-bit numbers and is read as {}-bit ones", port.0, t.dtype_bits, bits);
        t
    }

    /// Row i of a sequence. Panics, as the others do, at a port that the call writes, has no tensor for, or of another type.
    pub fn row(&self, port: Port, i: usize) -> &'a [T] {
        let t = self.tensor::<T>(port);
        assert!(self.ports[port.0].kind <= sys::ATTN_OUTPUT, "port {} is stored, it has no rows of a sequence", port.0);
        assert!((i as i64) < t.shape[2], "row {} of a port with {}", i, t.shape[2]);
        // SAFETY: within the shape, whose memory is the host's until the call returns.
        unsafe { slice::from_raw_parts(place::<T>(t, self.b, self.h, i), t.shape[3] as usize) }
    }

    /// All numbers of a LEARNED port.
    pub fn learned(&self, port: Port) -> &'a [T] {
        self.stored(port)
    }

    /// All numbers of a TABLE port, which are f32 under an f64 plan too.
    pub fn table(&self, port: Port) -> &'a [f32] {
        self.stored(port)
    }

    fn stored<N>(&self, port: Port) -> &'a [N] {
        let t = self.tensor::<N>(port);
        let n: i64 = t.shape[..t.ndim as usize].iter().product();
        // SAFETY: as above; stored ports are contiguous.
        unsafe { slice::from_raw_parts(t.data as *const N, n as usize) }
    }
}

// The beginning of row i of head h of row b.  A port of the sequence itself has one head.
unsafe fn place<T>(t: &sys::attn_tensor, b: usize, h: usize, i: usize) -> *mut T {
    let h = if t.shape[1] == 1 { 0 } else { h };
    (t.data as *mut T).offset((b as i64 * t.stride[0] + h as i64 * t.stride[1] + i as i64 * t.stride[2]) as isize)
}

/// The rows that a head writes: one port's rows of this head.
pub struct Output<'a, T> {
    tensor: &'a sys::attn_tensor,
    b: usize,
    h: usize,
    elements: PhantomData<&'a mut T>,
}

impl<'a, T: Real> Output<'a, T> {
    // SAFETY: for the rows of (b, h) there is one Output at a time.
    pub(crate) unsafe fn new(tensor: &'a sys::attn_tensor, b: usize, h: usize) -> Self {
        Output { tensor, b, h, elements: PhantomData }
    }

    /// Row i.
    pub fn row(&mut self, i: usize) -> &mut [T] {
        let t = self.tensor;
        assert!((i as i64) < t.shape[2], "row {} of {}", i, t.shape[2]);
        // SAFETY: within the shape; nobody else has the rows of this head.
        unsafe { slice::from_raw_parts_mut(place::<T>(t, self.b, self.h, i), t.shape[3] as usize) }
    }

    pub(crate) fn clear(&mut self, row: impl Fn(usize) -> bool) {
        for i in 0..self.tensor.shape[2] as usize {
            if row(i) {
                self.row(i).fill(T::default());
            }
        }
    }
}

/// One head of one row of a run.
pub struct Head<'a, T> {
    /// Which keys its queries see.
    pub sight: Sight<'a>,
    /// Its queries, keys and stored tensors.
    pub inputs: Inputs<'a, T>,
    /// Its rows of the output.
    pub output: Output<'a, T>,
    /// Its state of past keys, [`crate::Cost::state`] numbers; zero before the first key.
    pub state: &'a mut [T],
    /// Whether `state` is kept: then every key must go in.
    pub streams: bool,
    /// [`crate::Cost::scratch`] numbers, undefined.
    pub scratch: &'a mut [T],
    /// Its number.
    pub head: usize,
    /// Length of the whole query and key sequences, where they are known.
    pub totals: (Option<f64>, Option<f64>),
}

/// One head of one row of a gradient.
pub struct Gradient<'a, T> {
    /// Which keys its queries see.
    pub sight: Sight<'a>,
    /// The tensors that the run read and wrote, by port.
    pub run: Inputs<'a, T>,
    /// The gradient of the output, by its port.
    pub given: Inputs<'a, T>,
    /// [`crate::Cost::scratch`] numbers, undefined.
    pub scratch: &'a mut [T],
    pub(crate) tensors: &'a [sys::attn_tensor],
    pub(crate) place: (usize, usize),
}

impl<'a, T: Real> Gradient<'a, T> {
    /// Row i of the gradient of a QUERY or KEY port; `None`: it is not wanted.
    pub fn row(&mut self, port: Port, i: usize) -> Option<&mut [T]> {
        let t = &self.tensors[port.0];
        if t.data.is_null() {
            return None;
        }
        assert!(self.run.ports[port.0].kind <= sys::ATTN_KEY, "port {} is no QUERY or KEY", port.0);
        assert!((i as i64) < t.shape[2], "row {} of a port with {}", i, t.shape[2]);
        // SAFETY: within the shape; nobody else has the rows of this head.
        Some(unsafe { slice::from_raw_parts_mut(place::<T>(t, self.place.0, self.place.1, i), t.shape[3] as usize) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    // One row of two numbers.
    fn tensor(values: &mut [f32; 2]) -> sys::attn_tensor {
        sys::attn_tensor {
            data: values.as_mut_ptr().cast(),
            shape: [1, 1, 1, 2],
            stride: [2, 2, 2, 1],
            dtype_code: 2,
            dtype_bits: 32,
            dtype_lanes: 1,
            ndim: 4,
            device_type: 1,
            device_id: 0,
        }
    }

    #[test]
    fn a_port_is_read_as_what_it_is() {
        let mut values = [1f32, 2.0];
        let here = tensor(&mut values);
        let absent = sys::attn_tensor { data: std::ptr::null_mut(), ..here };
        let read = |t: sys::attn_tensor, table: bool| {
            let port = sys::attn_port { kind: sys::ATTN_TABLE, ..Default::default() };
            catch_unwind(move || {
                let (tensors, ports) = ([t], [port]);
                let inputs = Inputs::<f64>::new(&tensors, &ports, |_| false, 0, 0);
                if table { inputs.table(Port(0)).to_vec() } else { inputs.learned(Port(0)).iter().map(|&x| x as f32).collect() }
            })
            .ok()
        };
        assert_eq!(read(here, true), Some(vec![1.0, 2.0])); // a table is f32 under an f64 plan
        assert_eq!(read(here, false), None);
        assert_eq!(read(absent, true), None);
    }

    #[test]
    fn rows_are_of_sequences() {
        let mut values = [1f32, 2.0];
        let t = tensor(&mut values);
        let run = sys::attn_run::default();
        let rows = |kind| {
            let (tensors, ports) = ([t], [sys::attn_port { kind, ..Default::default() }]);
            let inputs = Inputs::<f32>::new(&tensors, &ports, |_| false, 0, 0);
            let sight = unsafe { Sight::of(&run, 0, false) };
            let mut gradient = Gradient { sight, run: inputs, given: inputs, scratch: &mut [], tensors: &tensors, place: (0, 0) };
            let read = catch_unwind(|| inputs.row(Port(0), 0).to_vec()).is_ok();
            (read, catch_unwind(AssertUnwindSafe(|| gradient.row(Port(0), 0).is_some())).is_ok())
        };
        assert_eq!(rows(sys::ATTN_KEY), (true, true));
        assert_eq!(rows(sys::ATTN_OUTPUT), (true, false)); // whose gradient is given
        assert_eq!(rows(sys::ATTN_LEARNED), (false, false));
        assert_eq!(rows(sys::ATTN_TABLE), (false, false));
    }
}
