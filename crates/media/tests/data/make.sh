#!/usr/bin/env bash
# Makes the files of this folder with an ffmpeg that has libvpx-vp9, libaom-av1 and libx264 (made with 9.0.2, as
# imageio-ffmpeg has it). Beside each file lies its last frame as that ffmpeg reads it: red, green and blue, row by row.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
ffmpeg="${FFMPEG:-ffmpeg}"

# make NAME OPTIONS...: eight frames of a moving picture.
make() {
    local name="$1" size="${SIZE:-32x32}"
    shift
    "$ffmpeg" -v error -y -f lavfi -i "testsrc2=size=$size:rate=8:duration=1" -bitexact "$@" "$name"
    reference "$name"
}

# The last frame; planes of colour are spread without smoothing.
reference() {
    "$ffmpeg" -v error -y -i "$1" -vf reverse -frames:v 1 -sws_flags neighbor+accurate_rnd+full_chroma_int \
        -pix_fmt rgb24 -f rawvideo "$1.rgb"
}

vp9=(-c:v libvpx-vp9 -b:v 0 -crf 40)
av1=(-c:v libaom-av1 -crf 40 -cpu-used 6)
h264=(-c:v libx264 -crf 30 -x264-params info=0)
bt709=(-vf scale=out_color_matrix=bt709 -colorspace bt709 -color_primaries bt709 -color_trc bt709)
full=(-vf scale=out_range=full -color_range pc)

make vp9.webm "${vp9[@]}" -pix_fmt yuv420p
make vp9_10bit.webm "${vp9[@]}" -pix_fmt yuv420p10le
make vp9_bt709.mp4 "${vp9[@]}" "${bt709[@]}" -pix_fmt yuv444p
make av1_bt709.mp4 "${av1[@]}" "${bt709[@]}" -pix_fmt yuv420p
make av1_10bit.webm "${av1[@]}" "${full[@]}" -pix_fmt yuv420p10le
make av1_grey.webm "${av1[@]}" -pix_fmt gray
make h264_bt709.mp4 "${h264[@]}" "${bt709[@]}" -pix_fmt yuv420p -bf 2
make h264_full.mkv "${h264[@]}" "${full[@]}" -pix_fmt yuv420p
# Four frames of an eighth of a second, then four of three eighths.
make h264_uneven.mp4 "${h264[@]}" -vf "setpts='(N+if(gt(N,4),2*(N-4),0))/8/TB'" -fps_mode passthrough -pix_fmt yuv420p
make h264_10bit.mp4 "${h264[@]}" -pix_fmt yuv420p10le
make h264_422.mp4 "${h264[@]}" -pix_fmt yuv422p
make h264_interlaced.mp4 "${h264[@]}" -flags +ildct+ilme -pix_fmt yuv420p

# A file whose frames lie on their side: shown a quarter with the clock.
SIZE=32x16 make upright.mp4 "${h264[@]}" -pix_fmt yuv420p
"$ffmpeg" -v error -y -display_rotation -90 -i upright.mp4 -c copy -bitexact h264_turned.mp4
reference h264_turned.mp4
# These are only refused, where there is no ffmpeg.
rm upright.mp4 upright.mp4.rgb h264_422.mp4.rgb h264_interlaced.mp4.rgb
