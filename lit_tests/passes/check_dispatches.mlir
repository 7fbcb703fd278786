// RUN: mxc opt %s --passes mxc-check-dispatches | filecheck %s

// As many as the runtime passes; a CPU takes more buffers than a GPU.
// CHECK-COUNT-2: hal.executable.export
#cpu = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64">
#gpu = #hal.executable.target<"rocm", "rocm-hsaco-fb">
#b = #hal.pipeline.binding<storage_buffer>
hal.executable private @on_cpu {
  hal.executable.variant public @cpu target(#cpu) {
    hal.executable.export public @on_cpu ordinal(0) layout(#hal.pipeline.layout<constants = 64, bindings = [#b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b]>) count(%d: !hal.device) -> (index, index, index) {
      %one = arith.constant 1 : index
      hal.return %one, %one, %one : index, index, index
    }
  }
}
hal.executable private @on_gpu {
  hal.executable.variant public @gpu target(#gpu) {
    hal.executable.export public @on_gpu ordinal(0) layout(#hal.pipeline.layout<constants = 64, bindings = [#b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b, #b]>) count(%d: !hal.device) -> (index, index, index) {
      %one = arith.constant 1 : index
      hal.return %one, %one, %one : index, index, index
    }
  }
}
