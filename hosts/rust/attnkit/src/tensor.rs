//! Numbers as tensors of the ABI, borrowed and never copied, but for rows of different lengths.
use crate::error::{Error, Result};
use attnkit_sys as sys;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::os::raw::c_void;

mod sealed {
    pub trait Sealed {}
}

/// A type that tensors may have.
pub trait Element: Copy + sealed::Sealed {
    /// The code of DLPack.
    const CODE: u8;
}
macro_rules! element {
    ($($t:ty, $code:expr);*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const CODE: u8 = $code;
        }
    )*};
}
element!(f32, 2; f64, 2; i32, 0; i64, 0);

/// A strided view of numbers that are borrowed for 'a; the innermost dimension is contiguous.
///
/// ```compile_fail,E0597
/// let tensor = {
///     let numbers = [1f32, 2.0];
///     attnkit::Tensor::new(&numbers, &[1, 2]) // `numbers` does not live long enough
/// };
/// drop(tensor);
/// ```
/// ```compile_fail,E0502
/// let mut numbers = [1f32, 2.0];
/// let tensor = attnkit::Tensor::new_mut(&mut numbers, &[1, 2]);
/// println!("{}", numbers[0]); // what a call may write to is not read meanwhile
/// drop(tensor);
/// ```
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub(crate) raw: sys::attn_tensor,
    pub(crate) writable: bool,
    borrowed: PhantomData<&'a ()>,
}

impl<'a> Tensor<'a> {
    /// A contiguous tensor that is read.
    pub fn new<T: Element>(data: &'a [T], shape: &[i64]) -> Result<Self> {
        Self::make(data.as_ptr(), data.len(), shape, contiguous(shape, &mut [1; 4]), false)
    }

    /// A contiguous tensor that may be written to.
    pub fn new_mut<T: Element>(data: &'a mut [T], shape: &[i64]) -> Result<Self> {
        Self::make(data.as_mut_ptr(), data.len(), shape, contiguous(shape, &mut [1; 4]), true)
    }

    /// A tensor with strides in elements, the last of which is 1, that is read.
    pub fn strided<T: Element>(data: &'a [T], shape: &[i64], stride: &[i64]) -> Result<Self> {
        Self::make(data.as_ptr(), data.len(), shape, stride, false)
    }

    /// A tensor with strides that may be written to.
    pub fn strided_mut<T: Element>(data: &'a mut [T], shape: &[i64], stride: &[i64]) -> Result<Self> {
        Self::make(data.as_mut_ptr(), data.len(), shape, stride, true)
    }

    /// No tensor, where a port may have none: an AUX_IN without a value yet, a gradient that is not wanted.
    pub fn absent() -> Self {
        Tensor { raw: sys::attn_tensor::default(), writable: true, borrowed: PhantomData }
    }

    /// A step's token, and its logits: (1, 1) and (1, 1, n), with nothing to check.
    pub(crate) fn token(token: &'a i32) -> Self {
        Self::step(token as *const i32 as *mut c_void, 0, 2, 1, false)
    }

    pub(crate) fn logits(logits: &'a mut [f32]) -> Self {
        Self::step(logits.as_mut_ptr().cast(), 2, 3, logits.len() as i64, true)
    }

    fn step(data: *mut c_void, dtype_code: u8, ndim: u32, n: i64, writable: bool) -> Self {
        let (shape, stride) = if ndim == 2 { ([1, n, 0, 0], [n, 1, 0, 0]) } else { ([1, 1, n, 0], [n, n, 1, 0]) };
        let raw =
            sys::attn_tensor { data, shape, stride, dtype_code, dtype_bits: 32, dtype_lanes: 1, ndim, device_type: 1, device_id: 0 };
        Tensor { raw, writable, borrowed: PhantomData }
    }

    fn make<T: Element>(data: *const T, len: usize, shape: &[i64], stride: &[i64], writable: bool) -> Result<Self> {
        if shape.len() > 4 || shape.len() != stride.len() || shape.iter().chain(stride).any(|&n| n < 0) {
            let message = format!("shape {:?} with strides {:?}: up to 4 of each, from 0, are needed", shape, stride);
            return Err(Error::invalid(message));
        }
        let empty = shape.contains(&0);
        let last = shape.iter().zip(stride).try_fold(0i64, |sum, (&n, &s)| sum.checked_add((n - 1).max(0).checked_mul(s)?));
        match last {
            Some(last) if empty || (last as usize) < len => {}
            _ => {
                let message = format!("shape {:?} with strides {:?} goes past the {} numbers given", shape, stride, len);
                return Err(Error::invalid(message));
            }
        }
        let mut raw = sys::attn_tensor {
            data: data as *mut c_void,
            dtype_code: T::CODE,
            dtype_bits: 8 * std::mem::size_of::<T>() as u8,
            dtype_lanes: 1,
            ndim: shape.len() as u32,
            device_type: 1,
            ..Default::default()
        };
        raw.shape[..shape.len()].copy_from_slice(shape);
        raw.stride[..shape.len()].copy_from_slice(stride);
        Ok(Tensor { raw, writable, borrowed: PhantomData })
    }
}

/// The strides of up to four dimensions without gaps, in `room`, so that nothing is allocated.
fn contiguous<'a>(shape: &[i64], room: &'a mut [i64; 4]) -> &'a [i64] {
    let n = shape.len().min(room.len());
    for d in (1..n).rev() {
        room[d - 1] = room[d].saturating_mul(shape[d].max(0));
    }
    &room[..n]
}

/// A source, or a part of one.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Token ids.
    Ids(&'a [i32]),
    /// Samples within [-1, 1] at the model's sample rate.
    Samples(&'a [f32]),
    /// Frames as `Model::features` makes them, side by side, of this many numbers each.
    Frames(&'a [f32], usize),
}

impl<'a, const N: usize> From<&'a [i32; N]> for Source<'a> {
    fn from(ids: &'a [i32; N]) -> Self {
        Source::Ids(ids)
    }
}
impl<'a> From<&'a [i32]> for Source<'a> {
    fn from(ids: &'a [i32]) -> Self {
        Source::Ids(ids)
    }
}
impl<'a> From<&'a Vec<i32>> for Source<'a> {
    fn from(ids: &'a Vec<i32>) -> Self {
        Source::Ids(ids)
    }
}
impl<'a> From<&'a [f32]> for Source<'a> {
    fn from(samples: &'a [f32]) -> Self {
        Source::Samples(samples)
    }
}
impl<'a> From<&'a Vec<f32>> for Source<'a> {
    fn from(samples: &'a Vec<f32>) -> Self {
        Source::Samples(samples)
    }
}

impl<'a> Source<'a> {
    pub(crate) fn tensor(self) -> Result<Tensor<'a>> {
        match self {
            Source::Ids(ids) => Tensor::new(ids, &[1, ids.len() as i64]),
            Source::Samples(samples) => Tensor::new(samples, &[1, samples.len() as i64]),
            Source::Frames(frames, width) => {
                let count = rows_of(frames.len(), width)?;
                Tensor::new(frames, &[1, count as i64, width as i64])
            }
        }
    }
}

fn rows_of(numbers: usize, width: usize) -> Result<usize> {
    if width == 0 || numbers % width != 0 {
        return Err(Error::invalid(format!("{} numbers do not make whole rows of {}", numbers, width)));
    }
    Ok(numbers / width)
}

/// Sources or targets side by side.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    data: Data<'a>,
    rows: usize,
    length: usize,
    lengths: Vec<i32>,
}

#[derive(Clone, Debug)]
enum Data<'a> {
    Ids(Cow<'a, [i32]>),
    Speech(&'a [f32], usize),
}

impl<'a> Batch<'a> {
    /// Sequences of ids, copied into rows of one length.
    pub fn of<R: AsRef<[i32]>>(rows: &[R]) -> Batch<'static> {
        let length = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
        let mut ids = Vec::with_capacity(rows.len() * length);
        for row in rows {
            ids.extend_from_slice(row.as_ref());
            ids.resize(ids.len() + length - row.as_ref().len(), 0);
        }
        let lengths = rows.iter().map(|row| row.as_ref().len() as i32).collect();
        Batch { data: Data::Ids(Cow::Owned(ids)), rows: rows.len(), length, lengths }
    }

    /// Rows of ids as they lie, of which the first `lengths` are real.
    pub fn ids(data: &'a [i32], lengths: &[i32]) -> Result<Self> {
        let length = Self::length(data.len(), lengths.len())?;
        Ok(Batch { data: Data::Ids(Cow::Borrowed(data)), rows: lengths.len(), length, lengths: lengths.to_vec() })
    }

    /// Rows of samples as they lie.
    pub fn samples(data: &'a [f32], lengths: &[i32]) -> Result<Self> {
        let length = Self::length(data.len(), lengths.len())?;
        Ok(Batch { data: Data::Speech(data, 0), rows: lengths.len(), length, lengths: lengths.to_vec() })
    }

    /// Rows of frames as they lie, of `features` numbers each.
    pub fn frames(data: &'a [f32], features: usize, lengths: &[i32]) -> Result<Self> {
        let length = Self::length(rows_of(data.len(), features)?, lengths.len())?;
        Ok(Batch { data: Data::Speech(data, features), rows: lengths.len(), length, lengths: lengths.to_vec() })
    }

    fn length(numbers: usize, rows: usize) -> Result<usize> {
        rows_of(numbers, rows)?;
        Ok(numbers / rows)
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The length of the rows, padding included.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.rows * self.length == 0
    }

    pub(crate) fn tensor(&self) -> Result<Tensor<'_>> {
        let (rows, length) = (self.rows as i64, self.length as i64);
        match &self.data {
            Data::Ids(ids) => Tensor::new(ids, &[rows, length]),
            Data::Speech(data, 0) => Tensor::new(data, &[rows, length]),
            Data::Speech(data, features) => Tensor::new(data, &[rows, length, *features as i64]),
        }
    }

    pub(crate) fn lengths(&self) -> *const i32 {
        self.lengths.as_ptr()
    }
}
