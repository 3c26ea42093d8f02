# Puts a folder together: FROM the build tree and the SOURCE tree, TO it, of the mechanisms NAMES.
set(programs attnkit_gpu_variants_test attnkit_gpu_halves_test attnkit_gpu_library_test attnkit_gpu_model_test attnkit_gpu_bench attnkit_conformance)
foreach(name IN LISTS NAMES)
  list(APPEND programs ${name}_test)
  file(COPY ${FROM}/lib/attnkit/1/${name}.so ${FROM}/lib/attnkit/1/${name}-cuda.so DESTINATION ${TO}/plugins)
endforeach()
list(TRANSFORM programs PREPEND ${FROM}/bin/)
file(COPY ${programs} DESTINATION ${TO}/bin)
file(COPY ${FROM}/lib/libattnkit_cuda.so DESTINATION ${TO})
file(COPY ${FROM}/lib/attnkit/1/reformer.so DESTINATION ${TO}/plugins)  # which has no variant
file(COPY ${SOURCE}/samples/manifests DESTINATION ${TO}/samples)
file(COPY ${SOURCE}/samples/models/numbers-en-de DESTINATION ${TO}/samples/models)
file(COPY ${SOURCE}/tests/support/golden DESTINATION ${TO})
file(COPY ${SOURCE}/tests/cuda/device/run.sh DESTINATION ${TO} FILE_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

# glibc belongs to the machine; what has no archive, oneTBB among it, goes along.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${programs} RESOLVED_DEPENDENCIES_VAR libraries UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread)\\.so")
if(missing)
  message(FATAL_ERROR "libraries that nobody has: ${missing}")
endif()
foreach(library IN LISTS libraries)
  file(COPY ${library} DESTINATION ${TO}/lib FOLLOW_SYMLINK_CHAIN)
endforeach()
message(STATUS "${TO}: copy it, then run its run.sh")
