# Thin: the work is in scripts/, the CMake presets and the program.
JOBS ?= $(shell nproc)

.PHONY: demo test build clean

demo: build
	build/release/octet train

test: build
	ctest --preset release -j $(JOBS) -LE gpu

build:
	scripts/setup
	cmake --preset release > build-configure.log || { cat build-configure.log; exit 1; }
	@rm -f build-configure.log
	cmake --build --preset release -j $(JOBS)

clean:
	rm -rf build
