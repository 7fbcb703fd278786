// RUN: mxc opt %s --passes mxc-lower-named-operations-to-cpu-kernels | filecheck %s

// One operation, and no word of the others. Each other one has a file of its own in the folder of this
// name.

// A workgroup a row, one kernel for all layers: the entry comes with the call. Queries first; then
// keys and values, which are stored as elements of the pool.
// CHECK: stream.executable private @mxc_rotary_write_4x2x64_bf16_8x16 {
// CHECK: workgroups(%{{.*}}: index, %[[ROWS:.*]]: index, %{{.*}}: index)
// CHECK: stream.return %[[ROWS]]
// CHECK: memref.load %{{.*}} : memref<?xi32>
// CHECK: scf.for %{{.*}} = %c0{{.*}} to %c16
// CHECK: vector.store %{{.*}} : memref<?x256xf32>, vector<16xf32>
// CHECK: scf.for %{{.*}} = %c0{{.*}} to %c8
// CHECK-COUNT-2: vector.store %{{.*}} : memref<?x8x16x2x64xbf16>, vector<16xbf16>
// CHECK: util.func public @layer(
// CHECK: %[[MADE:.*]]:2 = flow.dispatch @mxc_rotary_write_4x2x64_bf16_8x16::@mxc_rotary_write_4x2x64_bf16_8x16[%{{.*}}](%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %{{.*}}) {mxc.pool = {{.*}}} : ({{.*}}) -> (tensor<?x256xf32>{%{{.*}}}, %arg6{%{{.*}}})
// CHECK: util.return %[[MADE]]#0, %[[MADE]]#1
util.func private @mxc.rotary_write(%q: tensor<?x256xf32>, %k: tensor<?x128xf32>, %v: tensor<?x128xf32>, %cos: tensor<?x32xf32>, %sin: tensor<?x32xf32>, %slots: tensor<?xi32>, %pool: tensor<?x8x16x2x64xbf16>) -> (tensor<?x256xf32>, tensor<?x8x16x2x64xbf16>) attributes {mxc.operation = "rotary_write", mxc.options = {distance = 32 : i64, entry = 2 : i64, format = "", scaled = array<i64: 0, 0>}, mxc.sizes = array<i64: 0, 0, 6, 0>} {
  util.return %q, %pool : tensor<?x256xf32>, tensor<?x8x16x2x64xbf16>
}
util.func public @layer(%q: tensor<?x256xf32>, %k: tensor<?x128xf32>, %v: tensor<?x128xf32>, %cos: tensor<?x32xf32>, %sin: tensor<?x32xf32>, %slots: tensor<?xi32>, %pool: tensor<?x8x16x2x64xbf16>) -> (tensor<?x256xf32>, tensor<?x8x16x2x64xbf16>) {
  %0:2 = util.call @mxc.rotary_write(%q, %k, %v, %cos, %sin, %slots, %pool) : (tensor<?x256xf32>, tensor<?x128xf32>, tensor<?x128xf32>, tensor<?x32xf32>, tensor<?x32xf32>, tensor<?xi32>, tensor<?x8x16x2x64xbf16>) -> (tensor<?x256xf32>, tensor<?x8x16x2x64xbf16>)
  util.return %0#0, %0#1 : tensor<?x256xf32>, tensor<?x8x16x2x64xbf16>
}
