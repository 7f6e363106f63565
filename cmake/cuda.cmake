# The CUDA backend: object library octet_cuda inside octet_core, or its "not built" stand-in.
# CMake 3.25 knows no flag for CUDA C++20, so it is told; architectures are passed to nvcc as plain options.
# Compiling the kernels takes many minutes. AUTO therefore compiles them only for a GPU that is there.
set(OCTET_WITH_CUDA OFF)
set(has_gpu OFF)
foreach(file /dev/nvidiactl /dev/nvidia0 /dev/dxg)
  if(EXISTS ${file})
    set(has_gpu ON)
  endif()
endforeach()
set(cuda_reason "switched off")
if(OCTET_CUDA STREQUAL "AUTO" AND OCTET_SANITIZE)
  set(cuda_reason "the sanitizers do not see device code, ask for it with -DOCTET_CUDA=ON")
elseif(OCTET_CUDA STREQUAL "AUTO" AND NOT has_gpu)
  set(cuda_reason "it was built on a machine without an NVIDIA GPU, ask for it with -DOCTET_CUDA=ON or make CUDA=ON")
elseif(NOT OCTET_CUDA STREQUAL "OFF")
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  include(CheckLanguage)
  find_program(nvcc_program nvcc PATHS /usr/local/cuda/bin)
  if(nvcc_program AND NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${nvcc_program})
  endif()
  if(nvcc_program)
    check_language(CUDA)
  endif()
  if(nvcc_program AND CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit QUIET)
    find_path(CUBLASLT_INCLUDE cublasLt.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_CMAKE_FIND_ROOT_PATH)
    find_library(CUBLASLT_LIBRARY cublasLt PATHS ${CUDAToolkit_LIBRARY_DIR})
    if(CUDAToolkit_FOUND AND CUBLASLT_INCLUDE)
      set(OCTET_WITH_CUDA ON)
    else()
      set(cuda_reason "the cuBLASLt header was not found (package libcublas-dev)")
    endif()
  else()
    set(cuda_reason "nvcc was not found or does not work")
  endif()
endif()
if(OCTET_CUDA STREQUAL "ON" AND NOT OCTET_WITH_CUDA)
  message(FATAL_ERROR "OCTET_CUDA=ON, but ${cuda_reason}")
endif()

if(NOT OCTET_WITH_CUDA)
  message(STATUS "CUDA backend: no (${cuda_reason})")
  target_sources(octet_core PRIVATE src/backend/no_cuda/no_cuda.cpp)
  target_compile_definitions(octet_core PRIVATE OCTET_NO_CUDA_REASON="${cuda_reason}")
  return()
endif()

message(STATUS "CUDA backend: yes (nvcc ${CMAKE_CUDA_COMPILER_VERSION})")
set(CMAKE_CUDA_COMPILER_LAUNCHER ${compiler_launcher})
file(GLOB cuda_sources CONFIGURE_DEPENDS src/backend/cuda/*.cu src/backend/cuda/*.cpp)
add_library(octet_cuda OBJECT ${cuda_sources})
set_target_properties(octet_cuda PROPERTIES CUDA_STANDARD 20 CUDA_EXTENSIONS OFF)
target_link_libraries(octet_cuda PRIVATE octet_flags fmt::fmt nlohmann_json::nlohmann_json)
target_include_directories(octet_cuda SYSTEM PRIVATE ${CUBLASLT_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(octet_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo;-Xcompiler=-Wall;-diag-suppress=186;-gencode=arch=compute_90a,code=sm_90a>)
# fmt 9 believes that nvcc has no constexpr, and then fails its own compile-time checks.
target_compile_definitions(octet_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
if(OCTET_CUDA_BLACKWELL)
  target_compile_options(octet_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_100a,code=sm_100a>)
  target_compile_definitions(octet_cuda PRIVATE OCTET_CUDA_HAS_BLACKWELL)
endif()
# cuBLASLt (600 MB) is opened when the backend is made, not when the program starts; this is the last place tried.
if(CUBLASLT_LIBRARY)
  get_filename_component(cublaslt_folder ${CUBLASLT_LIBRARY} DIRECTORY)
  set_source_files_properties(src/backend/cuda/cublaslt.cpp PROPERTIES
    COMPILE_DEFINITIONS OCTET_CUBLASLT_FOLDER="${cublaslt_folder}")
endif()

# NCCL is opened when there are several ranks, and needs no header. Beside the system's places it may be in python3's.
execute_process(
  COMMAND python3 -c
    "from importlib import metadata; print(metadata.distribution('nvidia-nccl-cu13').locate_file('nvidia/nccl/lib'))"
  OUTPUT_VARIABLE nccl_places OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_file(NCCL_LIBRARY libnccl.so.2 PATHS ${nccl_places} ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
if(NCCL_LIBRARY)
  get_filename_component(nccl_folder ${NCCL_LIBRARY} DIRECTORY)
  set_source_files_properties(src/backend/cuda/nccl_library.cpp PROPERTIES
    COMPILE_DEFINITIONS OCTET_NCCL_FOLDER="${nccl_folder}")
endif()

include(${CMAKE_CURRENT_LIST_DIR}/cudnn.cmake)

target_sources(octet_core PRIVATE $<TARGET_OBJECTS:octet_cuda>)
# cudart statically: it finds the driver by itself at run time, so the program starts on machines without one.
# Only linked: with its folder of headers, every file would have other flags than in a build without CUDA.
target_link_libraries(octet_core PUBLIC $<LINK_ONLY:CUDA::cudart_static> ${CMAKE_DL_LIBS} rt)
