// RUN: mxc opt %s --verify-diagnostics --passes mxc-check-dispatches

#cpu = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64">
#gpu = #hal.executable.target<"rocm", "rocm-hsaco-fb">
#b = #hal.pipeline.binding<storage_buffer>
hal.executable private @constants {
  hal.executable.variant public @cpu target(#cpu) {
    // expected-error @+1 {{kernel main_dispatch_0 takes 65 sizes and offsets of a call, and IREE's runtime passes 64; give dimensions of the program known sizes}}
    hal.executable.export public @main_dispatch_0 ordinal(0) layout(#hal.pipeline.layout<constants = 65, bindings = [#b]>) count(%d: !hal.device) -> (index, index, index) {
      %one = arith.constant 1 : index
      hal.return %one, %one, %one : index, index, index
    }
  }
}

// -----

#cpu = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64">
#b = #hal.pipeline.binding<storage_buffer>
hal.executable private @buffers_on_cpu {
  hal.executable.variant public @cpu target(#cpu) {
    // expected-error @+1 {{kernel main_dispatch_2 takes 33 buffers of a call, and IREE's runtime passes 32}}
    hal.executable.export public @main_dispatch_2 ordinal(0) layout(#hal.pipeline.layout<bindings = [#b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b]>) count(%d: !hal.device) -> (index, index, index) {
      %one = arith.constant 1 : index
      hal.return %one, %one, %one : index, index, index
    }
  }
}

// -----

#gpu = #hal.executable.target<"rocm", "rocm-hsaco-fb">
#b = #hal.pipeline.binding<storage_buffer>
hal.executable private @buffers {
  hal.executable.variant public @gpu target(#gpu) {
    // expected-error @+1 {{kernel main_dispatch_1 takes 17 buffers of a call, and IREE's runtime passes 16}}
    hal.executable.export public @main_dispatch_1 ordinal(0) layout(#hal.pipeline.layout<bindings = [#b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b]>) count(%d: !hal.device) -> (index, index, index) {
      %one = arith.constant 1 : index
      hal.return %one, %one, %one : index, index, index
    }
  }
}
