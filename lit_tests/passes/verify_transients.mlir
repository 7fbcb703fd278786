// RUN: mxc opt %s --passes "mxc-verify-transients{max-transient-bytes=4096}" --split-input-file | filecheck %s
// RUN: mxc opt %s --passes "mxc-verify-transients{strict=false min-bytes=0 max-transient-bytes=100}" --split-input-file | filecheck %s --check-prefix=ALL

// An initialiser that only loads parameters.
// CHECK: stream.cmd.parameter.load
// ALL: stream.cmd.parameter.load
// ALL-NOT: mxc.fallback
util.global private @w : !stream.resource<constant>
util.initializer {
  %size = arith.constant 65536 : index
  %zero = arith.constant 0 : i64
  %key = util.buffer.constant : !util.buffer = "w"
  %scope = util.buffer.constant : !util.buffer = "model"
  %result, %done = stream.cmd.parameter.load {
    %scope::%key[%zero] : !stream.resource<constant>{%size}
  } => !stream.timepoint
  %w = stream.timepoint.await sync %done => %result : !stream.resource<constant>{%size}
  util.global.store %w, @w : !stream.resource<constant>
  util.return
}

// -----

// A transient of an allowed size; with a smaller limit it is marked.
// CHECK: stream.resource.alloca
// CHECK-NOT: mxc.fallback
// ALL: stream.resource.alloca
// ALL-SAME: mxc.fallback = "a transient buffer of 4096 bytes; wanted at most 100 bytes (max-transient-bytes)"
util.func public @f() -> !stream.timepoint {
  %size = arith.constant 4096 : index
  %result, %done = stream.resource.alloca uninitialized : !stream.resource<transient>{%size} => !stream.timepoint
  %end = stream.resource.dealloca await(%done) => %result : !stream.resource<transient>{%size} => !stream.timepoint
  util.return %end : !stream.timepoint
}

// -----

// A small copy of a parameter; without min-bytes it is marked.
// CHECK: stream.cmd.copy
// CHECK-NOT: mxc.fallback
// ALL: stream.cmd.copy
// ALL-SAME: mxc.fallback = "stream.cmd.copy copies up to 64 bytes of a parameter on every call
util.func public @f(%w: !stream.resource<constant>, %out: !stream.resource<external>) -> !stream.timepoint {
  %zero = arith.constant 0 : index
  %size = arith.constant 64 : index
  %done = stream.cmd.execute with(%w as %a: !stream.resource<constant>{%size}, %out as %b: !stream.resource<external>{%size}) {
    stream.cmd.copy %a[%zero], %b[%zero], %size : !stream.resource<constant>{%size} -> !stream.resource<external>{%size}
  } => !stream.timepoint
  util.return %done : !stream.timepoint
}
