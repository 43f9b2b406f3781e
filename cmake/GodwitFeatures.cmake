# The optional parts. Each GODWIT_<X> is AUTO (use it when found), ON (an error when missing) or
# OFF. Afterwards GODWIT_HAVE_<X> is TRUE or FALSE and GODWIT_<X>_INFO says in words what was found or
# why not. Targets: godwit_torch, godwit_gloo (they exist only where the feature does).

# Settles feature <x>: `found` is a boolean, `info` the version and place, or the reason.
function(godwit_settle_feature x found info)
  if(GODWIT_${x} STREQUAL "OFF")
    set(found FALSE)
    set(info "switched off")
  elseif(GODWIT_${x} STREQUAL "ON" AND NOT found)
    message(FATAL_ERROR "GODWIT_${x}=ON, but it is not usable: ${info}")
  endif()
  if(found)
    set(found TRUE)
  else()
    set(found FALSE)
  endif()
  set(GODWIT_HAVE_${x} ${found} PARENT_SCOPE)
  set(GODWIT_${x}_INFO "${info}" PARENT_SCOPE)
endfunction()
