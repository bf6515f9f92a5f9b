//! The cases as a backend of somebody else runs them: one that computes right, one that computes an operation wrong, and
//! one that refuses it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use device::op::{Unary, UnaryKind};
use device::{
    Backend, Cancel, Description, Device, HostExecutor, HostStream, Ledger, Memory, MemoryInfo, OpCall,
    Result, Span, StreamBackend, StreamKind,
};
use device_cpu::CpuBackend;
use meta::{DType, DeviceId};

const BUDGET: u64 = 4 << 30;

/// What is wrong with a backend.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Nothing,
    NegatesNothing,
    RefusesToNegate,
}

fn negates(call: &OpCall) -> bool {
    matches!(call, OpCall::Unary(Unary { kind: UnaryKind::Neg, .. }))
}

/// The CPU's kernels under another id, with a fault.
struct Outside {
    cpu: CpuBackend,
    fault: Fault,
}

impl Backend for Outside {
    fn describe(&self) -> Description {
        Description { id: DeviceId::null(3), activations: &[DType::F32], ..self.cpu.describe() }
    }
    fn memory(&self) -> Result<MemoryInfo> {
        self.cpu.memory()
    }
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.cpu.allocate(bytes)
    }
    fn allocate_pinned(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.cpu.allocate(bytes)
    }
    fn open_stream(&self, kind: StreamKind, _ledger: &Ledger) -> Result<Arc<dyn StreamBackend>> {
        let executor = Faulty { inner: self.cpu.executor(), fault: self.fault };
        Ok(Arc::new(HostStream::new(Arc::new(executor), kind)))
    }
    fn supports(&self, call: &OpCall) -> Result<(), String> {
        if self.fault == Fault::RefusesToNegate && negates(call) {
            return Err("there is no minus here".to_owned());
        }
        self.cpu.supports(call)
    }
    fn trim(&self) -> Result<()> {
        Ok(())
    }
    fn reaches(&self, _other: DeviceId) -> bool {
        true
    }
}

struct Faulty {
    inner: Arc<dyn HostExecutor>,
    fault: Fault,
}

impl HostExecutor for Faulty {
    fn run(&self, call: &OpCall, cancel: &Cancel) -> Result<()> {
        match call {
            OpCall::Unary(unary) if self.fault == Fault::NegatesNothing && negates(call) => {
                let same = Unary { kind: UnaryKind::Affine { mul: 1.0, add: 0.0 }, ..unary.clone() };
                self.inner.run(&OpCall::Unary(same), cancel)
            }
            _ => self.inner.run(call, cancel),
        }
    }
    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
        self.inner.copy(to, from, cancel)
    }
    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
        self.inner.read(from, to, cancel)
    }
    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()> {
        self.inner.write(to, from, cancel)
    }
}

fn cpu() -> Device {
    Device::new(Arc::new(CpuBackend::new()), BUDGET)
}

fn outside(fault: Fault) -> Device {
    Device::new(Arc::new(Outside { cpu: CpuBackend::new(), fault }), BUDGET)
}

#[test]
fn the_cpu_passes_against_plain_loops() {
    let cpu = cpu();
    let report = conformance::run(&cpu, std::slice::from_ref(&cpu), "").unwrap();
    assert!(report.outcomes().len() > 200, "{} cases", report.outcomes().len());
    assert!(report.outcomes().iter().all(|outcome| outcome.against == "f64 loops"));
    assert!(report.passed(), "{}", report.failures());
}

#[test]
fn a_backend_that_computes_right_passes() {
    let report = conformance::run(&cpu(), &[outside(Fault::Nothing)], "").unwrap();
    assert!(report.outcomes().len() > 200, "{} cases", report.outcomes().len());
    assert!(report.outcomes().iter().all(|outcome| outcome.against == "cpu" && outcome.device == "null:3"));
    assert!(report.passed(), "{}", report.failures());
}

#[test]
fn a_wrong_operation_is_found_and_no_other() {
    let report = conformance::run(&cpu(), &[outside(Fault::NegatesNothing)], "unary").unwrap();
    let failed: Vec<&str> =
        report.outcomes().iter().filter(|it| !it.passed).map(|it| it.variant.as_str()).collect();
    assert!(!report.passed() && failed.len() == 1, "{failed:?}");
    let failures = report.failures();
    assert!(failures.contains("on null:3 in f32: relative error 2.00e0 above"), "{failures}");
    let summary = report.summary();
    let all = report.outcomes().len();
    assert_eq!(summary, format!("{} of {all} cases passed on 1 device(s)", all - 1));
}

#[test]
fn a_refusal_is_a_failure_with_its_reason() {
    let report = conformance::run(&cpu(), &[outside(Fault::RefusesToNegate)], "unary").unwrap();
    let failed: Vec<_> = report.outcomes().iter().filter(|it| !it.passed).collect();
    assert_eq!(failed.len(), 1, "{}", report.failures());
    assert!(failed[0].relative_error.is_none());
    assert!(
        failed[0].failure.as_deref().unwrap().contains("there is no minus here"),
        "{}",
        report.failures()
    );
}

#[test]
fn a_name_that_no_case_has_gives_no_evidence() {
    let report = conformance::run(&cpu(), &[cpu()], "no such operation").unwrap();
    assert!(report.is_empty() && !report.passed());
}
