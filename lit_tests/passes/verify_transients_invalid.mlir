// RUN: mxc opt %s --passes "mxc-verify-transients{max-transient-bytes=4096}" --split-input-file --verify-diagnostics

// A weight that is prepared when the program loads.
util.global private @hoisted : !stream.resource<constant>
util.initializer {
  %size = arith.constant 524288 : index
  %zero = arith.constant 0 : index
  %result, %ready = stream.resource.alloca uninitialized : !stream.resource<constant>{%size} => !stream.timepoint
  %done = stream.cmd.execute await(%ready) => with(%result as %a: !stream.resource<constant>{%size}) {
    // expected-error @+1 {{an initialiser runs stream.cmd.dispatch when the program loads, for @hoisted; wanted parameters mapped as they are: pack the weight in this form, or turn constant hoisting off}}
    stream.cmd.dispatch @exe::@dequantize {
      wo %a[%zero for %size] : !stream.resource<constant>{%size}
    }
  } => !stream.timepoint
  %w = stream.timepoint.await sync %done => %result : !stream.resource<constant>{%size}
  util.global.store %w, @hoisted : !stream.resource<constant>
  util.return
}
stream.executable private @exe {
  stream.executable.export public @dequantize
  builtin.module {
    func.func @dequantize(%arg0: !stream.binding) {
      return
    }
  }
}

// -----

// A weight that is copied on every call.
util.func public @f(%w: !stream.resource<constant>, %out: !stream.resource<external>) -> !stream.timepoint {
  %zero = arith.constant 0 : index
  %size = arith.constant 65536 : index
  %done = stream.cmd.execute with(%w as %a: !stream.resource<constant>{%size}, %out as %b: !stream.resource<external>{%size}) {
    // expected-error @+1 {{stream.cmd.copy copies up to 65536 bytes of a parameter on every call; wanted the parameter read where it lies}}
    stream.cmd.copy %a[%zero], %b[%zero], %size : !stream.resource<constant>{%size} -> !stream.resource<external>{%size}
  } => !stream.timepoint
  util.return %done : !stream.timepoint
}

// -----

// More transient memory than allowed, twice, and memory whose size nobody knows.
util.func public @f() -> !stream.timepoint {
  %size = arith.constant 8192 : index
  // expected-error @+1 {{a transient buffer of 8192 bytes; wanted at most 4096 bytes (max-transient-bytes) (and 1 more)}}
  %result, %done = stream.resource.alloca uninitialized : !stream.resource<transient>{%size} => !stream.timepoint
  %end = stream.resource.dealloca await(%done) => %result : !stream.resource<transient>{%size} => !stream.timepoint
  %more, %known = stream.resource.alloca uninitialized await(%end) => !stream.resource<transient>{%size} => !stream.timepoint
  %last = stream.resource.dealloca await(%known) => %more : !stream.resource<transient>{%size} => !stream.timepoint
  util.return %last : !stream.timepoint
}

// -----

util.func public @f(%size: index) -> !stream.timepoint {
  // expected-error @+1 {{a transient buffer of a size known only at run time; wanted at most 4096 bytes (max-transient-bytes)}}
  %result, %done = stream.resource.alloca uninitialized : !stream.resource<transient>{%size} => !stream.timepoint
  %end = stream.resource.dealloca await(%done) => %result : !stream.resource<transient>{%size} => !stream.timepoint
  util.return %end : !stream.timepoint
}
