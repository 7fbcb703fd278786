// RUN: mxc opt %s --passes mxc-lower-named-operations-to-gpu-kernels | filecheck %s

// One operation, and no word of the others. Each other one has a file of its own in the folder of this
// name.

// A workgroup a row, a thread some pieces of four elements of both halves of a head. A zero for each
// query comes last, for the attention that follows.
// CHECK: workgroup_size = [256, 1, 1] subgroup_size = 64
// CHECK: stream.executable private @mxc_rotary_write_4x2x64_bf16_8x16 {
// CHECK: gpu.thread_id
// CHECK: vector.store %{{.*}}, vector<4xf32>
// CHECK: memref.store %c0_i32{{.*}} : memref<?x4xi32,
// CHECK: util.func public @layer(
// CHECK: :3 = flow.dispatch @mxc_rotary_write_4x2x64_bf16_8x16::

util.func private @mxc.rotary_write(%q: tensor<?x256xf32>, %k: tensor<?x128xf32>, %v: tensor<?x128xf32>, %cos: tensor<?x32xf32>, %sin: tensor<?x32xf32>, %slots: tensor<?xi32>, %pool: tensor<?x8x16x2x64xbf16>) -> (tensor<?x256xf32>, tensor<?x8x16x2x64xbf16>) attributes {mxc.operation = "rotary_write", mxc.options = {distance = 32 : i64, entry = 2 : i64, format = "", scaled = array<i64: 0, 0>}, mxc.sizes = array<i64: 0, 0, 6, 0>} {
  util.return %q, %pool : tensor<?x256xf32>, tensor<?x8x16x2x64xbf16>
}
util.func public @layer(%q: tensor<?x256xf32>, %k: tensor<?x128xf32>, %v: tensor<?x128xf32>, %cos: tensor<?x32xf32>, %sin: tensor<?x32xf32>, %slots: tensor<?xi32>, %pool: tensor<?x8x16x2x64xbf16>) -> (tensor<?x256xf32>, tensor<?x8x16x2x64xbf16>) {
  %0:2 = util.call @mxc.rotary_write(%q, %k, %v, %cos, %sin, %slots, %pool) : (tensor<?x256xf32>, tensor<?x128xf32>, tensor<?x128xf32>, tensor<?x32xf32>, tensor<?x32xf32>, tensor<?xi32>, tensor<?x8x16x2x64xbf16>) -> (tensor<?x256xf32>, tensor<?x8x16x2x64xbf16>)
  util.return %0#0, %0#1 : tensor<?x256xf32>, tensor<?x8x16x2x64xbf16>
}
