# Runs at the time of 'cmake --install': writes what octet prints about itself, and copies libraries.
# In: octet_program, octet_root, octet_bundle.
function(octet_prints file)
  set(path "${octet_root}/share/${file}")
  get_filename_component(folder "${path}" DIRECTORY)
  file(MAKE_DIRECTORY "${folder}")
  execute_process(COMMAND "${octet_program}" ${ARGN} OUTPUT_FILE "${path}" RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "'${octet_program} ${ARGN}' failed: ${code}")
  endif()
  message(STATUS "Installing: ${path}")
endfunction()

# The licence text of a library, where the Debian package that it comes from has one. A library may be known to dpkg by
# another path than the linker's, because /lib is a link to /usr/lib.
function(octet_copies_licence library real)
  find_program(dpkg_query dpkg-query)
  if(NOT dpkg_query)
    return()
  endif()
  foreach(path "${real}" "${library}")
    string(REGEX REPLACE "^/usr/lib/" "/lib/" short "${path}")
    foreach(known "${path}" "${short}")
      execute_process(COMMAND "${dpkg_query}" -S "${known}" OUTPUT_VARIABLE owner ERROR_QUIET RESULT_VARIABLE code)
      if(code EQUAL 0 AND owner MATCHES "^([^:,]+)")
        set(package "${CMAKE_MATCH_1}")
        if(EXISTS "/usr/share/doc/${package}/copyright")
          get_filename_component(text "/usr/share/doc/${package}/copyright" REALPATH)
          configure_file("${text}" "${octet_root}/share/doc/octet/licences/${package}.txt" COPYONLY)
          return()
        endif()
      endif()
    endforeach()
  endforeach()
  message(STATUS "The licence text of ${library} was not found")
endfunction()

octet_prints(man/man1/octet.1 man)
octet_prints(bash-completion/completions/octet completion bash)
octet_prints(zsh/site-functions/_octet completion zsh)
octet_prints(fish/vendor_completions.d/octet.fish completion fish)

if(octet_bundle)
  # Left to the machine: the C library and what belongs to it, GCC's run-time libraries, which are never older than the C
  # library that the program needs, and the driver.
  set(every_machine_has
    "^ld-linux.*" "^linux-vdso.*" "^libc\\.so.*" "^libm\\.so.*" "^libdl\\.so.*" "^libpthread\\.so.*" "^librt\\.so.*"
    "^libresolv\\.so.*" "^libutil\\.so.*" "^libgcc_s\\.so.*" "^libstdc\\+\\+\\.so.*" "^libcuda\\.so.*"
    "^libnvidia-.*")
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES "${octet_program}"
    RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
    CONFLICTING_DEPENDENCIES_PREFIX conflict PRE_EXCLUDE_REGEXES ${every_machine_has})
  # The same library by two paths: any will do.
  foreach(name ${conflict_FILENAMES})
    list(GET conflict_${name} 0 one)
    list(APPEND libraries "${one}")
  endforeach()
  if(missing)
    message(FATAL_ERROR "octet needs libraries that are not on this machine: ${missing}")
  endif()
  list(LENGTH libraries count)
  message(STATUS "Installing: ${count} libraries in ${octet_root}/lib/octet")
  foreach(library ${libraries})
    get_filename_component(name "${library}" NAME)
    get_filename_component(real "${library}" REALPATH)
    get_filename_component(real_name "${real}" NAME)
    file(COPY "${real}" DESTINATION "${octet_root}/lib/octet")
    if(NOT real_name STREQUAL name)
      file(RENAME "${octet_root}/lib/octet/${real_name}" "${octet_root}/lib/octet/${name}")
    endif()
    octet_copies_licence("${library}" "${real}")
  endforeach()
endif()
