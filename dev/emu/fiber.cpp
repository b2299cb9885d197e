// fiber.cpp: making a stack, and the few instructions that switch to it.
#include "fiber.h"
#include "include/cuda_emu.h"
#include <sys/mman.h>
#include <unistd.h>

// emu_switch_stack(save_sp, sp): pushes the registers that a function must preserve, stores the
// stack pointer in *save_sp, takes the other one, pops, and returns into the other fiber.
#ifndef EMU_UCONTEXT
#if defined(__x86_64__)
asm(R"(
.text
.globl emu_switch_stack
.type emu_switch_stack,@function
emu_switch_stack:
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
.size emu_switch_stack,.-emu_switch_stack
)");
#else  // aarch64
asm(R"(
.text
.globl emu_switch_stack
.type emu_switch_stack,@function
emu_switch_stack:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size emu_switch_stack,.-emu_switch_stack
)");
#endif
#endif

namespace emu {

Fiber *make_fiber(size_t stack_bytes, void (*main)(), unsigned color) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *map = (char *)mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) emu_fail("no memory for another thread's stack");
    mprotect(map, page, PROT_NONE);
    Fiber *f = new Fiber();
    f->stack = map + page;
    f->stack_bytes = stack_bytes;
#ifdef EMU_UCONTEXT
    (void)color;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = stack_bytes;
    f->context.uc_link = nullptr;
    makecontext(&f->context, main, 0);
#else
    void **top = (void **)(f->stack + stack_bytes - color % 61 * 64);
#if defined(__x86_64__)
    top -= 8;  // six registers, main as the address to return to, and null as main's own caller:
    top[6] = (void *)main;  // on entry to main, sp is 8 below a multiple of 16, as after a call
#else
    top -= 20;
    top[11] = (void *)main;  // x30
#endif
    f->sp = top;
#endif
    return f;
}

}  // namespace emu
