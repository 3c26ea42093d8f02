//! A model: a manifest with its weights and plugins, ready to run.
use crate::block::Role;
use crate::call::{c_path, c_text, call, string, text_of, Blob, Handle};
use crate::error::{Diagnostic, Error, Result};
use crate::runtime::Runtime;
use crate::session::{number, Session};
use crate::tensor::{Batch, Source, Tensor};
use attnkit_sys as sys;
use std::path::Path;
use std::ptr::{null, null_mut};

/// Which vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// That of the source.
    Source = 0,
    /// That of the target.
    Target = 1,
}

/// Kinds of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Reads a source and answers once.
    Encoder,
    /// Continues a text.
    Decoder,
    /// Writes a target for a source.
    EncoderDecoder,
}

/// Sizes of a model; see attnkit_model_info.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Its description.
    pub kind: Kind,
    /// 0 where the model has no such side.
    pub source_vocab: usize,
    /// 0 where the model has no such side.
    pub target_vocab: usize,
    /// Width of a row of logits: `target_vocab`, or classes.
    pub outputs: usize,
    /// The longest source and target.
    pub max_length: usize,
    /// The token that begins a target (of an encoder alone its `[CLS]` or `<s>`), of attnkit's own vocabularies `<s>`;
    /// -1: none.
    pub begin_id: i32,
    /// The token that ends source and target, of attnkit's own vocabularies `</s>`; -1: none.
    pub end_id: i32,
    /// The beams of `[decode]`, at least 1.
    pub beams: u32,
    /// The number of parameters that it learned.
    pub parameters: u64,
    /// Of one session of one row at `max_length` on both sides.
    pub state_bytes: u64,
    /// Samples a second of a model that takes speech, else 0; so are the following.
    pub sample_rate: usize,
    /// Samples of a frame.
    pub frame_length: usize,
    /// Samples from one frame to the next.
    pub frame_shift: usize,
    /// Numbers of a frame.
    pub features: usize,
    /// Frames that make one row of the encoder.
    pub subsampling: usize,
}

/// A manifest with its weights and plugins, ready to run; immutable.
#[derive(Debug)]
pub struct Model {
    pub(crate) handle: Handle<sys::attnkit_model>,
    info: ModelInfo,
    pub(crate) facts: Facts,
    warnings: Vec<Diagnostic>,
}

/// The model's description, beside its sizes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    pub max_target: usize,
    pub repetition_penalty: f64,
    pub no_repeat: usize,
    pools: bool,
    centred: bool,
}

/// A batch of sources after the encoder, for any model with the same one.
#[derive(Debug)]
pub struct Encoded(Handle<sys::attnkit_encoded>);

// SAFETY: "model, encoded: any thread, any number of calls at once".
unsafe impl Send for Model {}
unsafe impl Sync for Model {}
unsafe impl Send for Encoded {}
unsafe impl Sync for Encoded {}

unsafe extern "C" fn collect(list: usize, diagnostic: *const sys::attnkit_diagnostic) {
    let d = &*diagnostic;
    (*(list as *mut Vec<Diagnostic>)).push(Diagnostic {
        is_error: d.severity == sys::ATTNKIT_ERROR,
        area: d.area,
        code: d.code,
        line: d.line,
        column: d.column,
        message: string(d.message),
        help: string(d.help),
    });
}

impl Model {
    /// Reads a manifest and all it names. An error carries every diagnostic.
    pub fn open(runtime: &Runtime, path: impl AsRef<Path>) -> Result<Self> {
        let path = c_path(path.as_ref(), "the path")?;
        Self::load(|context, to, err| unsafe {
            sys::attnkit_model_open(runtime.0.get(), path.as_ptr(), Some(collect), context, to, err)
        })
    }

    /// The same of a manifest's text, whose paths are relative to `folder`.
    pub fn from_text(runtime: &Runtime, toml: &str, folder: impl AsRef<Path>) -> Result<Self> {
        let toml = c_text(toml, "the manifest")?;
        let folder = c_path(folder.as_ref(), "the folder")?;
        Self::load(|context, to, err| unsafe {
            sys::attnkit_model_create(runtime.0.get(), toml.as_ptr(), folder.as_ptr(), Some(collect), context, to, err)
        })
    }

    /// Every problem of a manifest and of its weights, without making a model; none: it opens.
    pub fn check(runtime: &Runtime, toml: &str, folder: impl AsRef<Path>) -> Result<Vec<Diagnostic>> {
        let toml = c_text(toml, "the manifest")?;
        let folder = c_path(folder.as_ref(), "the folder")?;
        let mut found = Vec::new();
        let context = &mut found as *mut Vec<Diagnostic> as usize;
        let checked = call(|err| unsafe {
            let (toml, folder) = (toml.as_ptr(), folder.as_ptr());
            sys::attnkit_model_create(runtime.0.get(), toml, folder, Some(collect), context, null_mut(), err)
        });
        match checked {
            Err(e) if !matches!(e, Error::Invalid(_)) => Err(e),
            _ => Ok(found),
        }
    }

    fn load(f: impl FnOnce(usize, *mut *mut sys::attnkit_model, *mut sys::attn_error) -> i32) -> Result<Self> {
        let mut found = Vec::new();
        let context = &mut found as *mut Vec<Diagnostic> as usize;
        let made = Handle::make(sys::attnkit_model_destroy, |to, err| f(context, to, err));
        let handle = match made {
            Ok(handle) => handle,
            Err(e) => return Err(e.with(found)),
        };
        let mut raw = sys::attnkit_model_info::default();
        call(|err| unsafe { sys::attnkit_model_get_info(handle.get(), &mut raw, err) })?;
        let size = |n: i32| usize::try_from(n).unwrap_or(0);
        let info = ModelInfo {
            kind: match raw.kind {
                sys::ATTNKIT_ENCODER => Kind::Encoder,
                sys::ATTNKIT_DECODER => Kind::Decoder,
                _ => Kind::EncoderDecoder,
            },
            source_vocab: size(raw.source_vocab),
            target_vocab: size(raw.target_vocab),
            outputs: size(raw.outputs),
            max_length: size(raw.max_length),
            begin_id: raw.begin_id,
            end_id: raw.end_id,
            beams: raw.beams,
            parameters: raw.parameters,
            state_bytes: raw.state_bytes,
            sample_rate: size(raw.sample_rate),
            frame_length: size(raw.frame_length),
            frame_shift: size(raw.frame_shift),
            features: size(raw.features),
            subsampling: size(raw.subsampling),
        };
        let mut model = Model { handle, info, facts: Facts::default(), warnings: found };
        let described = model.describe(&[])?.replace([' ', '\n'], "");
        model.facts = Facts {
            max_target: number(&described, "max_target"),
            repetition_penalty: number(&described, "repetition_penalty"),
            no_repeat: number(&described, "no_repeat"),
            pools: !described.contains("\"head\":{\"type\":\"lm\""),
            centred: described.contains("\"frontend\":{\"type\":\"centred\""),
        };
        Ok(model)
    }

    /// Sizes of the model.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The findings in the manifest that are no errors.
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }

    /// JSON "attnkit.model-description/1", with costs at the given lengths.
    pub fn describe(&self, lengths: &[i64]) -> Result<String> {
        text_of(|to, err| unsafe {
            sys::attnkit_model_describe(self.handle.get(), lengths.as_ptr(), lengths.len() as u32, to, err)
        })
    }

    /// Teacher forcing into `out`: (rows, target length, outputs), or (rows, outputs) of a classifier or an embedding.
    /// `None`: a side that the model lacks.
    pub fn forward(&self, source: Option<&Batch<'_>>, target: Option<&Batch<'_>>, out: &mut [f32]) -> Result<()> {
        let (s, t) = (source.map(Batch::tensor).transpose()?, target.map(Batch::tensor).transpose()?);
        let counted = if self.info.kind == Kind::Encoder { source } else { target };
        let out = self.logits(counted, out)?;
        call(|err| unsafe {
            let (source_len, target_len) = (lengths(source), lengths(target));
            sys::attnkit_model_forward(self.handle.get(), raw(&s), source_len, raw(&t), target_len, &out.raw, err)
        })
    }

    /// The encoder's part of forward alone, once for several calls of [`Model::decode`].
    pub fn encode(&self, source: &Batch<'_>) -> Result<Encoded> {
        let s = source.tensor()?;
        let make = |to, err| unsafe { sys::attnkit_model_encode(self.handle.get(), &s.raw, source.lengths(), to, err) };
        Ok(Encoded(Handle::make(sys::attnkit_encoded_destroy, make)?))
    }

    /// The rest of forward, for the sources of `encoded`, into `out` as there.
    pub fn decode(&self, encoded: &Encoded, target: &Batch<'_>, out: &mut [f32]) -> Result<()> {
        let t = target.tensor()?;
        let out = self.logits(Some(target), out)?;
        call(|err| unsafe {
            sys::attnkit_model_decode(self.handle.get(), encoded.0.get(), &t.raw, target.lengths(), &out.raw, err)
        })
    }

    fn logits<'a>(&self, rows: Option<&Batch<'_>>, out: &'a mut [f32]) -> Result<Tensor<'a>> {
        let (rows, length) = match rows {
            Some(batch) => (batch.rows(), batch.len()),
            None => return Tensor::new_mut(out, &[0]), // the library refuses the side that is not there
        };
        let outputs = self.info.outputs;
        let shape = if self.facts.pools { vec![rows, outputs] } else { vec![rows, length, outputs] };
        let needed: usize = shape.iter().product();
        if out.len() != needed {
            return Err(Error::invalid(format!("out has room for {} numbers, {:?} needs {}", out.len(), shape, needed)));
        }
        Tensor::new_mut(out, &shape.iter().map(|&n| n as i64).collect::<Vec<_>>())
    }

    /// The attention weights of one block for one input into `out`, (heads, queries, keys) with the rows that the block has
    /// for this input; layers count from 1. `None`: a side that the model lacks.
    pub fn attention(
        &self,
        role: Role,
        layer: u32,
        source: Option<Source<'_>>,
        target: Option<Source<'_>>,
        out: &mut [f32],
    ) -> Result<()> {
        let (s, t) = (source.map(Source::tensor).transpose()?, target.map(Source::tensor).transpose()?);
        let queries = self.rows(if role == Role::EncoderSelf { &s } else { &t })?;
        let keys = self.rows(if role == Role::DecoderSelf { &t } else { &s })?;
        let heads = out.len() as i64 / (queries * keys).max(1);
        let out = Tensor::new_mut(out, &[heads, queries, keys])?;
        call(|err| unsafe {
            sys::attnkit_model_attention(self.handle.get(), role as u32, layer, raw(&s), raw(&t), &out.raw, err)
        })
    }

    // Rows of a block that reads this side.
    fn rows(&self, side: &Option<Tensor<'_>>) -> Result<i64> {
        let side = match side {
            Some(side) if side.raw.dtype_code == 0 || self.info.subsampling == 0 => return Ok(side.raw.shape[1]),
            Some(side) => side,
            None => return Ok(0),
        };
        let frames = if side.raw.ndim == 3 { side.raw.shape[1] } else { self.frames(side)? as i64 };
        let frames_of_row = self.info.subsampling as i64;
        // The last row of a whole recording may have fewer.
        Ok((frames + if self.facts.centred { frames_of_row - 1 } else { 0 }) / frames_of_row)
    }

    /// The number of frames that [`Model::features`] makes.
    fn frames(&self, samples: &Tensor<'_>) -> Result<u64> {
        let mut n = 0;
        call(|err| unsafe { sys::attnkit_model_features(self.handle.get(), &samples.raw, null(), &mut n, err) })?;
        Ok(n)
    }

    /// Ids of a text, of a source with what the vocabulary puts before it (`[CLS]`, a language), of a target without
    /// [`ModelInfo::begin_id`]; without the token that ends it.
    pub fn tokenize(&self, side: Side, text: &str) -> Result<Vec<i32>> {
        let c = c_text(text, "the text")?;
        let mut ids = vec![0; 2 * text.len() + 1]; // each word may be a mark and a token for each byte; normalisation may make more
        loop {
            let mut n = ids.len() as u64;
            let made = call(|err| unsafe {
                sys::attnkit_model_tokenize(self.handle.get(), side as u32, c.as_ptr(), ids.as_mut_ptr(), &mut n, err)
            });
            match made {
                Ok(_) => {
                    ids.truncate(n as usize);
                    return Ok(ids);
                }
                Err(e) if n as usize <= ids.len() => return Err(e),
                Err(_) => ids.resize(n as usize, 0),
            }
        }
    }

    /// The text of ids; special tokens are left out.
    pub fn detokenize(&self, side: Side, ids: &[i32]) -> Result<String> {
        text_of(|to, err| unsafe {
            sys::attnkit_model_detokenize(self.handle.get(), side as u32, ids.as_ptr(), ids.len() as u64, to, err)
        })
    }

    /// The frames that a model which takes speech makes of samples, side by side.
    pub fn features(&self, samples: &[f32]) -> Result<Vec<f32>> {
        let input = Source::Samples(samples).tensor()?;
        let mut n = self.frames(&input)?;
        let mut frames = vec![0.0; n as usize * self.info.features];
        let out = Tensor::new_mut(&mut frames, &[1, n as i64, self.info.features as i64])?;
        if n > 0 {
            call(|err| unsafe { sys::attnkit_model_features(self.handle.get(), &input.raw, &out.raw, &mut n, err) })?;
        }
        Ok(frames)
    }

    /// All tensors, as read or as made from the seed: the bytes of a safetensors file.
    pub fn weights(&self) -> Result<Blob> {
        Blob::of(|to, err| unsafe { sys::attnkit_model_weights(self.handle.get(), to, err) })
    }

    /// JSON "attnkit.verification/1": how far every layer is from a file of golden activations.
    pub fn verify(&self, golden: impl AsRef<Path>) -> Result<String> {
        let golden = c_path(golden.as_ref(), "the path")?;
        text_of(|to, err| unsafe { sys::attnkit_model_verify(self.handle.get(), golden.as_ptr(), to, err) })
    }

    /// Greedy or, with more than one beam, beam search; beams and limit 0: as in the manifest. A decoder alone continues the
    /// text.
    pub fn translate(&self, text: &str, beams: u32, limit: usize) -> Result<String> {
        Ok(self.translate_all(&[text], beams, limit, 1)?.remove(0))
    }

    /// Translates each of many texts as `translate` does, up to `batch` of them decoded together; an error says of which text.
    pub fn translate_all(&self, texts: &[&str], beams: u32, limit: usize, batch: usize) -> Result<Vec<String>> {
        if batch == 0 {
            return Err(Error::invalid("batch 0: it must be 1 or more"));
        }
        let mut made = vec![String::new(); texts.len()];
        let (mut going, mut next): (Vec<(usize, Session)>, _) = (Vec::new(), 0);
        // Says of which of these texts an error is.
        let named = |numbers: &[usize], e: Error| {
            let place = if numbers.len() == 1 { Some(0) } else { e.failure().place };
            match place.filter(|_| texts.len() > 1) {
                Some(at) => e.begun(&format!("session {at}: "), &format!("text {}: ", numbers[at])),
                None => e,
            }
        };
        while next < texts.len() || !going.is_empty() {
            let (before, mut sources) = (going.len(), Vec::new());
            while next < texts.len() && going.len() < batch {
                let mut session = Session::new(self, beams)?;
                sources.extend(self.begin(&mut session, texts[next]).map_err(|e| named(&[next], e))?);
                going.push((next, session));
                next += 1;
            }
            let numbers: Vec<_> = going.iter().map(|(text, _)| *text).collect();
            let mut sessions: Vec<_> = going.iter_mut().map(|(_, session)| session).collect();
            if !sources.is_empty() {
                let (batch, last) = (Batch::of(&sources), vec![true; sources.len()]);
                Session::read_all(&mut sessions[before..], &batch, &last).map_err(|e| named(&numbers[before..], e))?;
            }
            let ended = Session::generate_all(&mut sessions, limit, 0).map_err(|e| named(&numbers, e))?;
            for (text, ids) in numbers.iter().zip(&ended) {
                if let Some(ids) = ids {
                    made[*text] = self.detokenize(Side::Target, ids)?;
                }
            }
            let mut ended = ended.iter();
            going.retain(|_| matches!(ended.next(), Some(None)));
        }
        Ok(made)
    }

    /// The source that a session is to read, or what it wrote, where a decoder continues the text.
    fn begin(&self, session: &mut Session, text: &str) -> Result<Option<Vec<i32>>> {
        if self.info.kind == Kind::EncoderDecoder {
            let mut ids = self.tokenize(Side::Source, text)?;
            ids.push(self.info.end_id);
            return Ok(Some(ids));
        }
        let mut ids = self.tokenize(Side::Target, text)?;
        if self.info.begin_id >= 0 {
            ids.insert(0, self.info.begin_id);
        }
        session.write(&Batch::of(&vec![ids; session.rows()]), None)?;
        Ok(None)
    }
}

pub(crate) fn raw(tensor: &Option<Tensor<'_>>) -> *const sys::attn_tensor {
    tensor.as_ref().map_or(null(), |t| &t.raw)
}

fn lengths(batch: Option<&Batch<'_>>) -> *const i32 {
    batch.map_or(null(), Batch::lengths)
}
