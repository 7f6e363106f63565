# OCTET_UNITY: up to ten files of a folder are compiled as one. Most of the time of a small file goes into the same headers
# and templates, so these folders take half as long. After a change, ten files are compiled again.
#
# Some files are compiled alone:
# - Folders that compute. Inlined into another file, a * b + c may be rounded once instead of twice. For the same reason,
#   files elsewhere for which the compiler fuses a multiplication and an addition.
# - Files with names that another file of the folder has, too.
# - Files with flags of their own: CMake sees to that.
set(unity_folders base bench checkpoint compare config data/chat data/datasets data/loading data/records data/shards
  data/tokenizer dist doctor eval hf import io plan report sweep train)
set(alone
  base/beta_function base/trace eval/scores hf/merge_adapter io/safetensors_writer
  train/cost_meter train/evaluate train/gpu_sampler train/guards
  data/shards/shard
  import/accelerate import/axolotl import/axolotl_adapters import/axolotl_data import/deepspeed import/flags import/fsdp_rules
  import/hf_trainer import/hf_training_keys import/llamafactory import/llamafactory_v1 import/rules_model import/trl_data)
foreach(name ${alone})
  if(NOT EXISTS ${PROJECT_SOURCE_DIR}/src/${name}.cpp)
    message(FATAL_ERROR "cmake/unity.cmake names ${name}, which is not there")
  endif()
endforeach()
if(NOT OCTET_UNITY)
  return()
endif()
foreach(folder ${unity_folders})
  set(sources ${core_sources})
  list(FILTER sources INCLUDE REGEX "^${PROJECT_SOURCE_DIR}/src/${folder}/[^/]*$")
  foreach(name ${alone})
    list(REMOVE_ITEM sources ${PROJECT_SOURCE_DIR}/src/${name}.cpp)
  endforeach()
  list(LENGTH sources count)
  math(EXPR units "(${count} + 9) / 10")
  set(number 0)
  foreach(source ${sources})
    math(EXPR unit "${number} * ${units} / ${count}")
    string(REPLACE "/" "_" group "${folder}_${unit}")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    math(EXPR number "${number} + 1")
  endforeach()
endforeach()
foreach(library octet_core octet_cold)
  set_target_properties(${library} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endforeach()
# A local name may be that of a function in another file.
target_compile_options(octet_flags INTERFACE -Wno-shadow)
