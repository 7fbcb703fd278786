// RUN: mxc opt %s --passes mxc-split-kernels | filecheck %s

// A kernel that is a switch on its workload becomes one for each case. The first keeps its name, by
// which it is dispatched, and goes to the next where its condition does not hold.
// CHECK-DAG: #[[FEW:.*]] = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline workgroup_size = [64, 1, 1]
// CHECK-DAG: #[[SOME:.*]] = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline workgroup_size = [128, 1, 1]
// CHECK-DAG: #[[MANY:.*]] = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline workgroup_size = [256, 1, 1]
// CHECK: hal.executable.export public @k ordinal(0) layout({{.*}}) condition(%{{.*}}: !hal.device, %[[N:.*]]: index) -> i1 {
// CHECK: %[[BOUND:.*]] = arith.constant 16 : index
// CHECK: %[[FITS:.*]] = arith.cmpi ult, %[[N]], %[[BOUND]] : index
// CHECK: hal.return %[[FITS]] : i1
// CHECK: } fallback(@k_from_16) count(
// CHECK: hal.executable.export public @k_from_16 ordinal(1) {{.*}} condition(
// CHECK: arith.constant 64 : index
// CHECK: } fallback(@k_from_64) count(
// CHECK: hal.executable.export public @k_from_64 ordinal(2) layout({{[^)]*}}) count(
// CHECK: func.func @k() attributes {translation_info = #[[FEW]]} {
// CHECK-NOT: util.optimization_barrier
// CHECK-NOT: scf.index_switch
// CHECK: memref.store %c1{{.*}}, %{{.*}}[%c0
// CHECK: func.func @k_from_16() attributes {translation_info = #[[SOME]]} {
// CHECK-NOT: scf.index_switch
// CHECK: memref.store %c2{{.*}}, %{{.*}}[%c0
// CHECK: func.func @k_from_64() attributes {translation_info = #[[MANY]]} {
// CHECK-NOT: scf.index_switch
// CHECK: memref.store %c3{{.*}}, %{{.*}}[%c0
// What has no cases stays as it is.
// CHECK: hal.executable.export public @plain ordinal(0) layout({{[^)]*}}) count(
// CHECK: scf.index_switch
#few = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline workgroup_size = [64, 1, 1] subgroup_size = 64>
#some = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline workgroup_size = [128, 1, 1] subgroup_size = 64>
#many = #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline workgroup_size = [256, 1, 1] subgroup_size = 64>
#target = #hal.executable.target<"rocm", "rocm-hsaco-fb">
#layout = #hal.pipeline.layout<constants = 1, bindings = [#hal.pipeline.binding<storage_buffer>]>
hal.executable private @k {
  hal.executable.variant public @gpu target(#target) {
    hal.executable.export public @k ordinal(0) layout(#layout) count(%d: !hal.device, %n: index) -> (index, index, index) {
      %one = arith.constant 1 : index
      hal.return %n, %one, %one : index, index, index
    }
    builtin.module {
      func.func @k() attributes {mxc.cases = {bounds = array<i64: 16, 64>, translations = [#few, #some, #many]}, translation_info = #few} {
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : i32
        %c2 = arith.constant 2 : i32
        %c3 = arith.constant 3 : i32
        %raw = hal.interface.constant.load layout(#layout) ordinal(0) : i32
        %n = arith.index_castui %raw : i32 to index
        %out = hal.interface.binding.subspan layout(#layout) binding(0) offset(%c0) : memref<1xi32>
        %i0 = arith.constant 0 : index
        %i1 = arith.constant 1 : index
        %i2 = arith.constant 2 : index
        %b0 = arith.constant 16 : index
        %b1 = arith.constant 64 : index
        %few = arith.cmpi ult, %n, %b0 : index
        %some = arith.cmpi ult, %n, %b1 : index
        %later = arith.select %some, %i1, %i2 : index
        %number = arith.select %few, %i0, %later : index
        %case = util.optimization_barrier %number : index
        scf.index_switch %case
        case 0 {
          memref.store %c1, %out[%c0] : memref<1xi32>
          scf.yield
        }
        case 1 {
          memref.store %c2, %out[%c0] : memref<1xi32>
          scf.yield
        }
        default {
          memref.store %c3, %out[%c0] : memref<1xi32>
        }
        return
      }
    }
  }
}
hal.executable private @plain {
  hal.executable.variant public @gpu target(#target) {
    hal.executable.export public @plain ordinal(0) layout(#layout) count(%d: !hal.device, %n: index) -> (index, index, index) {
      hal.return %n, %n, %n : index, index, index
    }
    builtin.module {
      func.func @plain(%case: index, %out: memref<1xindex>) {
        %c0 = arith.constant 0 : index
        scf.index_switch %case
        case 0 {
          memref.store %c0, %out[%c0] : memref<1xindex>
          scf.yield
        }
        default {
        }
        return
      }
    }
  }
}
