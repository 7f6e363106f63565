# What 'cmake --install' puts where, below the prefix:
#   bin/octet                      the program
#   lib/octet/*.so*                libraries that not every machine has (OCTET_BUNDLE)
#   share/...                      manual page, completion of bash, zsh and fish, example configurations
# The program finds lib/octet relative to itself, so the whole folder can be moved. A wheel of pip has the same layout.
option(OCTET_BUNDLE "Install the shared libraries that not every machine has, too" OFF)

set(octet_install_prefix "\${CMAKE_INSTALL_PREFIX}")
set(octet_program_folder bin)
if(SKBUILD)
  # pip puts what is in these two into bin/ and into the root of the environment.
  set(octet_program_folder ${SKBUILD_SCRIPTS_DIR})
  set(octet_install_prefix ${SKBUILD_DATA_DIR})
  set(octet_data_folder ${SKBUILD_DATA_DIR}/)
endif()

if(OCTET_PREBUILT)
  install(PROGRAMS ${OCTET_PREBUILT} DESTINATION ${octet_program_folder} RENAME octet)
  set(octet_program_file ${OCTET_PREBUILT})
else()
  install(TARGETS octet RUNTIME DESTINATION ${octet_program_folder})
  set(octet_program_file "$<TARGET_FILE:octet>")
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${octet_data_folder}share/octet)

# The program itself writes its manual page and completion. DESTDIR is empty unless a packager sets it.
install(CODE "
  set(octet_program \"${octet_program_file}\")
  set(octet_root \"\$ENV{DESTDIR}${octet_install_prefix}\")
  set(octet_bundle ${OCTET_BUNDLE})
  include(\"${PROJECT_SOURCE_DIR}/cmake/install_extras.cmake\")
")
