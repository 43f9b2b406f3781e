# Sourced by tools/demo, tools/test and tools/check after steps.sh: configure and build a preset.

# build_preset PRESET [TARGET...]
build_preset() {
  local preset=$1
  shift
  local targets=() features=()
  [ $# -eq 0 ] || targets=(--target "$@")
  # tools/setup has installed them: to go on without one would leave tests out unnoticed.
  case $preset in
    dev | release) features=(-DGODWIT_TORCH=ON -DGODWIT_GLOO=ON) ;;
  esac
  # A compiler cache is good for all clones and build folders of one machine.
  export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros
  steps_run "Configure $preset" "$root/build/logs/configure-$preset.log" \
    cmake -S "$root" --preset "$preset" "${features[@]}"
  sed -n '/-- Godwit /,/-- Configuring/{/Configuring/!p}' \
    "$root/build/logs/configure-$preset.log"
  steps_run "Build $preset" "$root/build/logs/build-$preset.log" \
    cmake --build "$root/build/$preset" --parallel "$(steps_jobs)" "${targets[@]}"
}
