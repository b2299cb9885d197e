# rules.mk: the emulated GPU's runtime, a part of the Makefile.

# The emulated GPU (dev/emu/README.md): its runtime, and what is linked with it.
EMU = $(wildcard dev/emu/*.cpp dev/emu/*.h dev/emu/*.pl dev/emu/emucc dev/emu/include/*.h)
EMU_OBJECTS = $(patsubst dev/emu/%.cpp,%.o,$(wildcard dev/emu/*.cpp))
EMU_FLAGS = -g1 $(ARCH) $(EXACT) $(WARN) -Wno-pass-failed -I. -D__CUDACC__ -DTIDE_NCCL $(EXTRA)
EMU_RUN = -std=c++17 -g1 $(ARCH) $(WARN) $(EXTRA)
emu_plain = $(EMU_OBJECTS:%=build/emu/runtime/%)

define runtime
build/emu/$(1)/%.o: dev/emu/%.cpp $(EMU) tide/cpu/cpu.h tide/base/util.h | cxx
	@mkdir -p $$(@D)
	$(2) $$(EMU_RUN) -c $$< -o $$@
endef
$(eval $(call runtime,runtime,$$(CXX) -O3 $$(OPENMP)))
