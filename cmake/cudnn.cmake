# cuDNN attention: the headers of cuDNN and of cudnn-frontend (header only). Without them our own kernels do all of it.
set(OCTET_CUDNN_FRONTEND "" CACHE PATH
  "Folder that holds cudnn_frontend.h; empty: the one of the Python package nvidia-cudnn-frontend, if installed")
set(frontend_places ${OCTET_CUDNN_FRONTEND})
if(NOT OCTET_CUDNN_FRONTEND)
  execute_process(
    COMMAND python3 -c
      "from importlib import metadata; print(metadata.distribution('nvidia-cudnn-frontend').locate_file('include'))"
    OUTPUT_VARIABLE frontend_places OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
# Looked for anew each time, so that a changed OCTET_CUDNN_FRONTEND counts.
unset(CUDNN_FRONTEND_INCLUDE CACHE)
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h PATHS ${frontend_places} PATH_SUFFIXES include NO_DEFAULT_PATH)
if(OCTET_CUDNN_FRONTEND AND NOT CUDNN_FRONTEND_INCLUDE)
  message(FATAL_ERROR "OCTET_CUDNN_FRONTEND is ${OCTET_CUDNN_FRONTEND}, which has no cudnn_frontend.h")
endif()
find_path(CUDNN_INCLUDE cudnn.h PATHS ${CUDAToolkit_INCLUDE_DIRS})
find_library(CUDNN_LIBRARY cudnn PATHS ${CUDAToolkit_LIBRARY_DIR} /usr/local/cuda/lib /usr/local/cuda/lib64)

if(NOT CUDNN_FRONTEND_INCLUDE)
  message(STATUS "cuDNN attention: no (cudnn_frontend.h was not found, see OCTET_CUDNN_FRONTEND)")
elseif(NOT CUDNN_INCLUDE)
  message(STATUS "cuDNN attention: no (cudnn.h was not found)")
else()
  message(STATUS "cuDNN attention: yes (${CUDNN_FRONTEND_INCLUDE})")
  target_include_directories(octet_cuda SYSTEM PRIVATE ${CUDNN_FRONTEND_INCLUDE} ${CUDNN_INCLUDE})
  set(cudnn_definitions OCTET_WITH_CUDNN CUDNN_FRONTEND_SKIP_JSON_LIB)
  if(CUDNN_LIBRARY)
    get_filename_component(cudnn_folder ${CUDNN_LIBRARY} DIRECTORY)
    list(APPEND cudnn_definitions OCTET_CUDNN_FOLDER="${cudnn_folder}")
  endif()
  set_source_files_properties(src/backend/cuda/attention_cudnn.cpp src/backend/cuda/attention_cudnn_plan.cpp
    src/backend/cuda/cudnn_library.cpp PROPERTIES COMPILE_DEFINITIONS "${cudnn_definitions}")
endif()
