# An extension module of the package: it exports its PyInit_ function and nothing else (exports.map). nanobind takes the stable ABI only where
# its component of Python was asked for.
function(vbgemm_add_module name)
  nanobind_add_module(${name} STABLE_ABI NB_STATIC ${ARGN})
  target_link_libraries(${name} PRIVATE vbgemm_options)
  target_include_directories(${name} SYSTEM PRIVATE ${XLA_FFI_INCLUDE})
  if(NOT APPLE)
    set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
    target_link_options(${name} PRIVATE "LINKER:--version-script=${exports}")
    set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${exports})
  endif()
  install(TARGETS ${name} LIBRARY DESTINATION jax_vbgemm)
endfunction()
