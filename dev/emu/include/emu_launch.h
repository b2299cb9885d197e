// emu_launch.h: what rewrite.pl makes of kernel<<<grid, block, shared, stream>>>(arguments).
#ifndef EMU_LAUNCH_H
#define EMU_LAUNCH_H
#include "cuda_emu.h"
#include "cuda_runtime_api.h"
#include <tuple>
#include <utility>

namespace emu {

struct Config {
    dim3 grid, block;
    size_t shared;  // bytes of dynamic shared memory
    cudaStream_t stream;
};
static inline Config config(dim3 grid, dim3 block, size_t shared = 0,
                            cudaStream_t stream = nullptr) {
    return {grid, block, shared, stream};
}

// A kernel and its arguments, waiting in a stream. run(args) is the work of one CUDA thread.
struct Launch {
    const char *kernel;
    const void *entry;  // which function: the limit of dynamic shared memory belongs to it
    int max_threads;    // __launch_bounds__
    Config config;
    void *args;
    void (*run)(void *args);
    void (*destroy)(void *args);
};
bool launch_allowed(const Launch &l);  // if not, cudaGetLastError() says why
void check_pointer(const char *kernel, int index, const void *p);  // fails on a host pointer
void launch(const Launch &l, const void *pc);

// What nvcc made of the kernel takes the place of the C++ function, in a program that dev/ptx is
// linked with: sets l's args, run and destroy, or returns false. The arguments end with a null one.
struct Argument { const void *p; size_t bytes, align; };
__attribute__((weak)) bool ptx_launch(Launch *l, const Argument *arguments);

template <typename T> static inline void check_argument(const char *kernel, int index, const T &x) {
    if constexpr (std::is_pointer_v<T>) check_pointer(kernel, index, (const void *)x);
    (void)kernel, (void)index, (void)x;
}

// F is what one thread calls.
template <typename F, typename... P> struct Args {
    F function;
    std::tuple<P...> p;
    template <size_t... I> void call(std::index_sequence<I...>) { function(std::get<I>(p)...); }
};

// The arguments are copied now, as on the device.
template <typename F, typename... P>
__attribute__((noinline)) static void launch_with(Launch l, F function, P... p) {
    typedef Args<F, P...> A;
    if (!launch_allowed(l)) return;
    int index = 0;
    (check_argument(l.kernel, index++, p), ...);
    (void)index;
    const Argument arguments[] = {{(const void *)&p, sizeof p, alignof(P)}..., {nullptr, 0, 0}};
    if (ptx_launch == nullptr || !ptx_launch(&l, arguments)) {
        l.args = new A{function, std::tuple<P...>(p...)};
        l.run = [](void *args) { ((A *)args)->call(std::index_sequence_for<P...>()); };
        l.destroy = [](void *args) { delete (A *)args; };
    }
    launch(l, __builtin_return_address(0));
}

// The usual case: the name is one function, so the call converts its arguments like any call.
template <typename... P> struct Launcher {
    Launch l;
    void (*kernel)(P...);
    void operator()(P... p) const { launch_with(l, kernel, p...); }
};

// An overloaded kernel, or a template whose arguments are deduced from the call's.
template <typename F> struct DeducedLauncher {
    Launch l;
    F call;
    template <typename... A> void operator()(A... a) const { launch_with(l, call, a...); }
};

struct OneFunction {
    template <typename... P> auto operator()(void (*kernel)(P...)) const { return kernel; }
};
template <typename... P>
static inline Launcher<P...> make_launcher(Launch l, void (*kernel)(P...)) {
    l.entry = (const void *)kernel;
    return {l, kernel};
}
template <typename Pick, typename Call>
static inline auto launcher(const char *name, int max_threads, Pick pick, Call call, Config c) {
    const Launch l = {name, nullptr, max_threads, c, nullptr, nullptr, nullptr};
    if constexpr (std::is_invocable_v<Pick, OneFunction>)
        return make_launcher(l, pick(OneFunction()));
    else
        return DeducedLauncher<Call>{l, call};
}

}  // namespace emu
#endif
