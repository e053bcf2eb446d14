// Switching stacks: saves the callee-saved registers on the old stack and restores them from the new one.
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" void mtl_switch(void **save, void *to);

#if defined(__x86_64__)
asm(R"(
.text
.globl mtl_switch
.type mtl_switch,@function
mtl_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mtl_switch,.-mtl_switch
)");
// The stack pointer with which mtl_switch enters `entry`; entry never returns.
static inline void *fibre_prepare(char *top, void (*entry)()) {
  void **sp = (void **)top;
  *--sp = nullptr;  // keeps the stack aligned as after a call
  *--sp = (void *)entry;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  return sp;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl mtl_switch
.type mtl_switch,%function
mtl_switch:
  stp x29, x30, [sp, #-160]!
  stp x19, x20, [sp, #16]
  stp x21, x22, [sp, #32]
  stp x23, x24, [sp, #48]
  stp x25, x26, [sp, #64]
  stp x27, x28, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #16]
  ldp x21, x22, [sp, #32]
  ldp x23, x24, [sp, #48]
  ldp x25, x26, [sp, #64]
  ldp x27, x28, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  ldp x29, x30, [sp], #160
  ret
.size mtl_switch,.-mtl_switch
)");
static inline void *fibre_prepare(char *top, void (*entry)()) {
  uint64_t *sp = (uint64_t *)top - 20;
  for (int i = 0; i < 20; i++) sp[i] = 0;
  sp[1] = (uint64_t)entry;  // x30, to which mtl_switch returns
  return sp;
}
#else
#error "the simulator runs on x86-64 and arm64"
#endif
