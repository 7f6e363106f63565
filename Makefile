# Thin: the work is in scripts/, the CMake presets and the program.
JOBS ?= $(shell nproc)
# GPU kernels are built if this machine has a GPU. make CUDA=ON builds them in any case, CUDA=OFF never, and CUDA=TOOLKIT
# wherever the CUDA toolkit is.
CUDA ?=

# Where 'make install' puts the program: bin/octet, manual page, completion. DESTDIR is put before it.
PREFIX ?= /usr/local

.PHONY: demo test build configure install package clean

# The first build of a new folder compiles several files as one (OCTET_UNITY), unless ccache can help. The folder keeps that:
# make test after make demo then compiles only the tests. What counts is the first look; developers begin with make test.
first_build = $(if $(wildcard build/release/CMakeCache.txt),,$(if $(CCACHE_DISABLE),1,$(if $(shell command -v ccache 2>/dev/null),,1)))
demo install: UNITY = $(if $(first_build),-DOCTET_UNITY=ON)

# Without the tests, so that a first look comes sooner.
demo: configure
	cmake --build --preset release -j $(JOBS) --target octet
	build/release/octet train

# One test more at a time than there are cores, because some mostly wait. .ci/nightly runs those that take minutes.
test: build
	ctest --preset release -j $$(($(JOBS) + 1)) -LE "gpu|nightly"

build: configure
	cmake --build --preset release -j $(JOBS)

configure:
	scripts/setup
	@cmake --preset release $(if $(CUDA),-DOCTET_CUDA=$(CUDA)) $(UNITY) > build-configure.log || { cat build-configure.log; exit 1; }
	@grep "CUDA backend" build-configure.log
	@rm -f build-configure.log

install: configure
	cmake --build --preset release -j $(JOBS) --target octet
	cmake --install build/release --prefix $(abspath $(PREFIX)) --strip

# build/octet-VERSION-linux-ARCH.tar.gz: a folder that runs wherever it is unpacked.
package:
	scripts/setup
	cmake --preset package $(if $(CUDA),-DOCTET_CUDA=$(CUDA))
	cmake --build --preset package -j $(JOBS) --target octet
	scripts/make_package build/package build

clean:
	rm -rf build
