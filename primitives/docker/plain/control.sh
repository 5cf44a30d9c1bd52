# The shell that works on files and processes for one handle. Each line of its
# input is a request, a command of the below; its answer ends with a line feed and
# a line of the tag, which only this shell and the handle know, and a status.

# look APP TOOLS... waits until the first process has made the folders, then prints
# where the tools are and what they can do, as name=value.
look() {
	app=$1 tries=0
	shift
	until [ -e "$app/ready" ]; do
		tries=$((tries + 1))
		[ $tries -lt 200 ] || fail $e_other 'the folders were not made'
		sleep 0.05
	done
	for tool; do
		at=$(command -v "$tool") && printf '%s=%s\n' "$tool" "$at"
	done
	printf 'uid=%s\n' "$(stat -c %u -- "$app/ready")"
	[ "$(printf abc | { IFS= read -r -n 2 text && printf '%s' "$text"; })" != ab ] || echo four=yes
	echo >"$app/$tag.a" && mv -f -T -- "$app/$tag.a" "$app/$tag.b" && echo exact=yes
	rm -f -- "$app/$tag.a" "$app/$tag.b"
	return 0
}

umask 022
exact=
[ "$move_exact" = 0 ] || exact=-T
count=0
IFS= read -r tag
printf '%s\n%s 0\n' $$ "$tag"
while IFS= read -r request; do
	count=$((count + 1))
	case $request in
	bye) exit 0 ;;
	esac
	(eval "$request") 2>/dev/null
	printf '\n%s %s\n' "$tag" "$?"
done
# The handle's program has died: its commands go with it.
[ -n "$handle" ] || exit 0
for signal in TERM KILL; do
	for id in $(marked "$handle"); do
		[ "$id" = $$ ] || kill -s "$signal" "$id"
	done
	sleep 2
done
