//! What crosses the boundary of a plugin: codes and messages, never a panic.
use attnkit_plugin::{sys, About, Block, Choice, Cost, Head, Mechanism, Port, Ports, Real, Refusal, Request, Sight, Step, Table, Values};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

/// Panics or refuses where its option says.
struct Fragile(String, Port);

impl Mechanism for Fragile {
    fn about() -> About {
        About { name: "fragile", summary: "breaks on demand", citation: "none", state_revision: "1" }
    }
    fn options() -> Vec<Choice> {
        vec![Choice::text("at", "", &[], "where")]
    }
    fn new(block: &Block, values: &Values<'_>, ports: &mut Ports) -> Result<Self, Refusal> {
        ports.key("v", block.value_width, "values");
        let o = ports.output("o", block.value_width, "nothing");
        match &values.text(0)[..] {
            "create" => panic!("in {}", "create"),
            "refuse" => Err(Refusal::unsupported("it does not like \u{e4}\u{f6}").at(0)),
            "long" => Err(Refusal::invalid("\u{e4}".repeat(600))),
            "width" => Err(Refusal::invalid(block.width.to_string())),
            at => Ok(Fragile(at.to_string(), o)),
        }
    }
    fn plan(&self, _: &Request, cost: &mut Cost) -> Result<(), Refusal> {
        assert_ne!(self.0, "plan", "no plan");
        cost.state = 1;
        Ok(())
    }
    fn head<T: Real>(&self, head: &mut Head<'_, T>) {
        assert_ne!(self.0, "run");
        if self.0 == "output" {
            head.inputs.row(self.1, 0);
        }
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        assert_ne!(self.0, "drop");
    }
}

/// Has gradients, and weights, whose gradients this crate does not offer; asks which totals it is told.
struct Weighed;

impl Mechanism for Weighed {
    const GRADIENTS: bool = true;
    fn about() -> About {
        About { name: "weighed", summary: "has weights", citation: "none", state_revision: "1" }
    }
    fn options() -> Vec<Choice> {
        vec![Choice::integer("n", 1, 0, 3, "a number")]
    }
    fn new(block: &Block, values: &Values<'_>, ports: &mut Ports) -> Result<Self, Refusal> {
        if values.integer(0) == 0 {
            values.text(0);
        }
        ports.key("v", block.value_width, "values");
        ports.learned("w", &[1], "a weight");
        ports.output("o", block.value_width, "nothing");
        Ok(Weighed)
    }
    fn plan(&self, request: &Request, _: &mut Cost) -> Result<(), Refusal> {
        Err(Refusal::invalid(format!("{} {}", request.knows_q_total(), request.knows_k_total())))
    }
    fn head<T: Real>(&self, _: &mut Head<'_, T>) {}
}

static TABLE: Table = Table::new();

fn said(err: &sys::attn_error) -> (i32, i32, String) {
    let message = unsafe { CStr::from_ptr(err.message.as_ptr()) };
    (err.code, err.r#where, message.to_str().expect("whole characters").to_string())
}

fn table() -> &'static sys::attn_plugin {
    table_of::<Fragile>(&TABLE)
}

fn table_of<M: Mechanism>(table: &Table) -> &'static sys::attn_plugin {
    let host = sys::attn_host { abi_minor: sys::ATTN_ABI_MINOR, ..Default::default() };
    let mut plugin = null();
    unsafe {
        assert_eq!(table.main::<M>(&host, &mut plugin, null_mut()), sys::ATTN_OK);
        &*plugin
    }
}

// The answer of Weighed where its option is n and a request has these flags.
fn said_of_weighed(n: i64, flags: u32) -> (i32, i32, String) {
    static WEIGHED: Table = Table::new();
    let (table, mut err) = (table_of::<Weighed>(&WEIGHED), sys::attn_error::default());
    let block = sys::attn_block { role: sys::ATTN_ENCODER_SELF, heads: 1, d_model: 1, head_width: 1, ..Default::default() };
    let value = sys::attn_value { r#type: sys::ATTN_INT, i: n, ..Default::default() };
    let request = sys::attn_request { device_type: 1, dtype_code: 2, dtype_bits: 32, workers: 1, flags, ..Default::default() };
    let (mut mech, mut ports, mut n_ports) = (null_mut(), null(), 0);
    unsafe {
        if table.create.unwrap()(&block, &value, &mut mech, &mut ports, &mut n_ports, &mut err) == sys::ATTN_OK {
            table.plan.unwrap()(mech, &request, null_mut(), null_mut(), &mut err);
            table.destroy.unwrap()(mech);
        }
    }
    said(&err)
}

// Create, plan and a run of one key and one query where the option is `at`.
fn fails(at: &str) -> (i32, i32, String) {
    let block = sys::attn_block { role: sys::ATTN_DECODER_SELF, causal: 1, heads: 1, d_model: 1, head_width: 1, ..Default::default() };
    fails_in(block, at)
}

fn fails_in(block: sys::attn_block, at: &str) -> (i32, i32, String) {
    let (table, text, mut err) = (table(), std::ffi::CString::new(at).unwrap(), sys::attn_error::default());
    let value = sys::attn_value { r#type: sys::ATTN_TEXT, s: text.as_ptr(), ..Default::default() };
    let request = sys::attn_request {
        device_type: 1,
        dtype_code: 2,
        dtype_bits: 32,
        dtype_lanes: 1,
        workers: 1,
        batch: 1,
        queries: 1,
        keys: 1,
        ..Default::default()
    };
    let (mut mech, mut ports, mut n, mut plan) = (null_mut(), null(), 0, null_mut());
    unsafe {
        if table.create.unwrap()(&block, &value, &mut mech, &mut ports, &mut n, &mut err) != sys::ATTN_OK {
            assert!(mech.is_null());
            return said(&err);
        }
        assert_eq!((n, CStr::from_ptr((**ports).name).to_str()), (2, Ok("v")));
        let mut info = sys::attn_info::default();
        if table.plan.unwrap()(mech, &request, &mut info, &mut plan, &mut err) == sys::ATTN_OK {
            let mut v = [1f32];
            let tensor = sys::attn_tensor {
                data: v.as_mut_ptr().cast(),
                shape: [1; 4],
                stride: [1; 4],
                dtype_code: 2,
                dtype_bits: 32,
                dtype_lanes: 1,
                ndim: 4,
                device_type: 1,
                device_id: 0,
            };
            let mut scratch = vec![0u64; info.scratch_bytes as usize / 8 + 8];
            let exec = sys::attn_exec { workers: 1, scratch: scratch.as_mut_ptr().cast(), scratch_bytes: info.scratch_bytes, ..Default::default() };
            let tensors = [tensor; 2];
            let run = sys::attn_run { exec: &exec, batch: 1, queries: 1, keys: 1, ports: tensors.as_ptr(), ..Default::default() };
            table.run.unwrap()(plan, &run, &mut err);
        }
        table.plan_free.unwrap()(plan);
        table.destroy.unwrap()(mech);
    }
    said(&err)
}

#[test]
fn panics_become_codes() {
    assert_eq!(fails(""), (sys::ATTN_OK, 0, String::new()));
    assert_eq!(fails("create"), (sys::ATTN_INTERNAL, -1, "the plugin panicked: in create".to_string()));
    let (code, _, message) = fails("plan");
    assert!(code == sys::ATTN_INTERNAL && message.contains("no plan"), "{}", message);
    assert_eq!(fails("run"), (sys::ATTN_INTERNAL, -1, "the plugin panicked while it computed a head".to_string()));
    assert_eq!(fails("output"), fails("run"));
    assert_eq!(fails("drop"), fails(""));
}

#[test]
fn the_width_of_keys_is_that_of_the_block() {
    let block = sys::attn_block { heads: 2, d_model: 8, head_width: 1, key_width: 3, ..Default::default() };
    assert_eq!(fails_in(block, "width").2, "3");
    assert_eq!(fails_in(sys::attn_block { key_width: 0, ..block }, "width").2, "4");
    // A host of minor 0 has no key_width.
    assert_eq!(fails_in(sys::attn_block { struct_size: 24, ..block }, "width").2, "4");
}

#[test]
fn an_option_is_read_as_what_it_is() {
    let (code, _, message) = said_of_weighed(0, 0);
    assert!(code == sys::ATTN_INTERNAL && message.contains("option 0 is read as another type"), "{}", message);
}

#[test]
fn gradients_of_weights_are_refused() {
    let (code, _, message) = said_of_weighed(1, sys::ATTN_TRAIN);
    assert_eq!((code, &message[..]), (sys::ATTN_UNSUPPORTED, "gradients of LEARNED ports are not offered: run it without ATTN_TRAIN"));
}

#[test]
fn a_request_says_which_totals_are_known() {
    assert_eq!(said_of_weighed(1, sys::ATTN_KNOWS_Q_TOTAL).2, "true false");
    assert_eq!(said_of_weighed(1, sys::ATTN_KNOWS_K_TOTAL).2, "false true");
}

#[test]
fn refusals_keep_code_place_and_whole_characters() {
    assert_eq!(fails("refuse"), (sys::ATTN_UNSUPPORTED, 0, "it does not like \u{e4}\u{f6}".to_string()));
    assert_eq!(fails("long"), (sys::ATTN_INVALID, -1, "\u{e4}".repeat(249)));
}

#[test]
fn a_host_that_needs_newer_plugins_is_refused() {
    let host = sys::attn_host { abi_minor: 9, oldest_plugin_minor: 9, ..Default::default() };
    let (mut plugin, mut err) = (null(), sys::attn_error::default());
    assert_eq!(unsafe { TABLE.main::<Fragile>(&host, &mut plugin, &mut err) }, sys::ATTN_UNSUPPORTED);
    assert!(plugin.is_null() && said(&err).2.contains("rebuild the plugin"));
}

#[test]
fn keys_go_in_before_the_queries_that_see_them() {
    let run = sys::attn_run { queries: 3, keys: 4, ..Default::default() };
    let steps = |causal, all| unsafe { Sight::of(&run, 0, causal) }.steps(all).collect::<Vec<_>>();
    let (append, read) = (|from, to| Step::Append(from..to), Step::Read);
    let causal = [append(0, 1), read(0), append(1, 2), read(1), append(2, 3), read(2)];
    assert_eq!(steps(true, false), causal);
    assert_eq!(steps(true, true), [&causal[..], &[append(3, 4)]].concat());
    assert_eq!(steps(false, true), [append(0, 4), read(0), read(1), read(2)]);
}
