# Thin: the work is in scripts/, the CMake presets and the program.
JOBS ?= $(shell nproc)

.PHONY: demo test build configure clean

# Without the tests, so that a first look comes sooner.
demo: configure
	cmake --build --preset release -j $(JOBS) --target octet
	build/release/octet train

test: build
	ctest --preset release -j $(JOBS) -LE gpu

build: configure
	cmake --build --preset release -j $(JOBS)

configure:
	scripts/setup
	cmake --preset release > build-configure.log || { cat build-configure.log; exit 1; }
	@rm -f build-configure.log

clean:
	rm -rf build
