# The shell that works on files and processes for one handle. Each line of its
# input is a request, a command of the below; its answer ends with a line feed and
# a line of the tag, which only this shell and the handle know, and a status.

nl='
'
# What describes a file; fileInfo in plain_list.go reads it.
format='%f|%s|%u|%g|%i|%y|%z'

# readable PATH succeeds if this user may read it. Unlike test it asks the kernel.
readable() { (: <"$1") 2>/dev/null; }

# show ROOT PATH describes what is there.
show() {
	resolve "$1" "$2" ''
	stat -c "$format" -- "$at" 2>/dev/null || why "$at"
	[ ! -L "$at" ] || readlink -n -- "$at"
}

# fetch ROOT PATH prints "+ " and the file. No line feed: the answer might end there.
fetch() {
	resolve "$1" "$2" 1
	[ ! -d "$at" ] || fail $e_directory
	[ -e "$at" ] || why "$at"
	[ -f "$at" ] || fail $e_not_regular
	readable "$at" || why "$at"
	exec 4<"$at"
	printf '+ '
	exec cat <&4
}

# list ROOT PATH DEPTH describes what is below a directory.
list() {
	resolve "$1" "$2" 1
	[ -d "$at" ] || why "$at" $e_not_directory
	cd -- "$at" 2>/dev/null && readable . || fail $e_permission
	depth=
	[ "$3" -lt 0 ] || depth="-maxdepth $3"
	find . -mindepth 1 $depth -exec stat -c "$tag|$format|%n" -- {} + 2>/dev/null
	return 0
}

# links ROOT PATH DEPTH prints the symbolic links below a directory, each with where
# it points.
links() {
	resolve "$1" "$2" 1
	cd -- "$at" 2>/dev/null || fail $e_permission
	depth=
	[ "$3" -lt 0 ] || depth="-maxdepth $3"
	find . -mindepth 1 $depth -type l -exec "$shell" -c '
		tag=$1
		shift
		for link; do
			printf "%s|%s%s|" "$tag" "$link" "$tag"
			readlink -n -- "$link"
		done' "$shell" "$tag" {} + 2>/dev/null
	return 0
}

# where ROOT PATH prints the place of a directory.
where() {
	resolve "$1" "$2" 1
	printf '%s' "$at"
}

# parents PATH makes the missing directories above a place.
parents() {
	above=${1%/*}
	[ -d "${above:-/}" ] || mkdir -p -- "$above" 2>/dev/null || [ -d "$above" ] || why "$above/"
}

# make ROOT PATH MODE makes a directory.
make() {
	resolve "$1" "$2" 1
	[ ! -d "$at" ] || return 0
	[ ! -e "$at" ] || fail $e_not_directory
	parents "$at"
	text=$(mkdir -- "$at" 2>&1) || [ -d "$at" ] || why_not_written "$at" "$text"
	chmod -- "$3" "$at"
}

# why_not_written PATH TEXT fails with the reason for which PATH could not be made.
why_not_written() {
	case $2 in
	*'No space left'* | *'quota exceeded'*) fail $e_no_space ;;
	*'Permission denied'* | *'Read-only file system'* | *'not permitted'*) fail $e_permission ;;
	esac
	fail $e_other "$2"
}

# keep PLACES... fails if at is one of them or holds one.
keep() {
	for place; do
		case $place/ in
		"${at%/}"/*) fail $e_invalid ;;
		esac
	done
}

# drop ROOT PATH RECURSIVE PLACES... removes what is there, but none of the places.
drop() {
	resolve "$1" "$2" ''
	recursive=$3
	shift 3
	keep "$@"
	[ -e "$at" ] || [ -L "$at" ] || why "$at"
	if [ -L "$at" ] || [ ! -d "$at" ]; then
		text=$(rm -f -- "$at" 2>&1) || why_not_written "$at" "$text"
	elif [ -z "$recursive" ]; then
		text=$(rmdir -- "$at" 2>&1) && return
		for entry in "$at"/* "$at"/.[!.]* "$at"/..?*; do
			[ ! -e "$entry" ] && [ ! -L "$entry" ] || fail $e_not_empty
		done
		why_not_written "$at" "$text"
	elif ! rm -rf -- "$at" 2>/dev/null; then
		# Directories that their owner may not read can still be opened.
		find "$at" -type d -exec chmod u+rwx {} \; 2>/dev/null
		text=$(rm -rf -- "$at" 2>&1) || why_not_written "$at" "$text"
	fi
}

# shift_to ROOT FROM TO PLACES... renames.
shift_to() {
	root=$1 to=$3
	resolve "$root" "$2" ''
	shift 3
	keep "$@"
	from=$at
	resolve "$root" "$to" ''
	[ -e "$from" ] || [ -L "$from" ] || why "$from"
	[ "$from" != "$at" ] || return 0
	case $at in
	"$from"/*) fail $e_invalid ;;
	esac
	if [ -d "$at" ] && [ ! -L "$at" ]; then fail $e_directory; fi
	if [ -d "$from" ] && [ ! -L "$from" ] && [ -e "$at" -o -L "$at" ]; then fail $e_not_directory; fi
	parents "$at"
	place "$from" "$at"
}

# place FROM TO renames onto what is not a directory.
place() {
	if [ -L "$2" ] && [ -d "$2" ] && ! [ -n "$exact" ]; then
		rm -f -- "$2" 2>/dev/null # this mv would move into it
	fi
	text=$(mv -f $exact -- "$1" "$2" 2>&1) || why_not_written "$2" "$text"
}

# connect ROOT PATH TARGET makes a symbolic link.
connect() {
	resolve "$1" "$2" ''
	if [ -d "$at" ] && [ ! -L "$at" ]; then fail $e_directory; fi
	parents "$at"
	rm -f -- "$at" 2>/dev/null
	text=$(ln -s -- "$3" "$at" 2>&1) || why_not_written "$at" "$text"
}

# pass copies the blocks that follow on the input to descriptor 3 until an empty
# one, which succeeds. Each begins with a line that has its length. What cannot be
# written is read all the same, and its reason is in text.
pass() {
	text= blocks=
	while IFS= read -r length; do
		case $length in
		0) return 0 ;;
		*[!0-9]* | '') return 1 ;;
		esac
		if [ -z "$text" ]; then
			text=$( { dd bs="$length" count=1 iflag=fullblock >&3; } 2>&1) && text= || text=${text:-unknown}
		else
			dd bs="$length" count=1 iflag=fullblock >/dev/null 2>&1
		fi
	done
	return 1
}

# store ROOT PATH HOW MODE REVISION writes a file. HOW is new, append or replace.
# The answer begins with "+ " when the content may come.
store() {
	how=$3 mode=$4 revision=$5 old=
	resolve "$1" "$2" 1
	case $2 in
	*/ | '') fail $e_directory ;;
	esac
	storable
	[ ! -e "$at" ] || old=$(stat -c '%a %u:%g' -- "$at")
	if [ "$how" = append ]; then
		exec 3>>"$at" || exit $e_permission
		printf '+ '
		pass || exit $e_other
		[ -z "$text" ] || why_not_written "$at" "$text"
		if [ -n "$mode" ] || [ -z "$old" ]; then chmod -- "${mode:-644}" "$at"; fi
		return
	fi
	part=${at%/*}/.agentenv-$tag-$count
	trap 'rm -f -- "$part"' EXIT
	text=$( { umask 077 && : >"$part"; } 2>&1) || why_not_written "$at" "$text"
	exec 3>"$part"
	printf '+ '
	pass || exit $e_other
	exec 3>&-
	[ -z "$text" ] || why_not_written "$at" "$text"
	finish
	[ "$how" = new ] || trap - EXIT
}

# storable checks that at can be written.
storable() {
	[ ! -d "$at" ] || fail $e_directory
	if [ -e "$at" ]; then
		[ -f "$at" ] || fail $e_not_regular
		[ "$how" != new ] || fail $e_exists
		(: >>"$at") 2>/dev/null || fail $e_permission
	elif [ -n "$revision" ]; then
		fail $e_conflict
	fi
	parents "$at"
}

# finish puts the written part in its place.
finish() {
	own=
	[ -z "$old" ] || own=${old#* }
	if [ -n "$own" ] && [ "$own" != "$(stat -c %u:%g -- "$part")" ]; then
		chown -- "$own" "$part" 2>/dev/null # if this user may
	fi
	old=${old%% *}
	chmod -- "${mode:-${old:-644}}" "$part" || exit $e_other
	if [ -n "$revision" ]; then
		[ "$(stat -c "$format" -- "$at" 2>/dev/null)" = "$revision" ] || fail $e_conflict
	fi
	if [ "$how" = new ]; then
		text=$(ln -- "$part" "$at" 2>&1) && return
		[ ! -e "$at" ] || fail $e_exists
		why_not_written "$at" "$text"
	fi
	place "$part" "$at"
}

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

# known USER GROUP succeeds if the image has them. A number always exists.
known() {
	named "$1" /etc/passwd && named "$2" /etc/group
}

named() {
	case $1 in
	'') return 0 ;;
	*[!0-9]*) ;;
	*) return 0 ;;
	esac
	while IFS=: read -r name _; do
		[ "$name" != "$1" ] || return 0
	done <"$2"
	return 1
} 2>/dev/null

# scan reads the processes: "pid parent group session", for all but zombies.
scan() {
	all=
	for stat in /proc/[0-9]*/stat; do
		IFS= read -r line <"$stat" || continue
		id=${line%% *}
		set -- ${line##*) }
		[ "$1" = Z ] || [ "$1" = X ] || all="$all$id $2 $3 $4
"
	done
} 2>/dev/null

# marked WORD prints the processes that have the word in their environment.
marked() {
	if [ -n "$grep" ]; then
		found=$(grep -l -s -F -e "$1" /proc/[0-9]*/environ)
		for file in $found; do
			file=${file#/proc/}
			echo "${file%%/*}"
		done
		return
	fi
	for file in /proc/[0-9]*/environ; do
		while IFS= read -r line || [ -n "$line" ]; do
			case $line in
			*"$1"*)
				id=${file#/proc/}
				echo "${id%%/*}"
				break
				;;
			esac
			line=
		done <"$file"
	done
} 2>/dev/null

# tree ID MARK sets ids to the processes of a command: its session and group, what
# they started, and what has its mark.
tree() {
	ids=" $(marked "$2" | while read -r id; do printf '%s ' "$id"; done)"
	scan
	before=
	alive=' '
	while [ "$before" != "$ids" ]; do
		before=$ids
		while read -r id parent group session; do
			[ -n "$id" ] || continue
			case $ids in
			*" $id "*) ;;
			*)
				if [ "$id" = "$1" ] || [ "$group" = "$1" ] || [ "$session" = "$1" ]; then
					ids="$ids$id "
				else
					case $ids in
					*" $parent "*) ids="$ids$id " ;;
					esac
				fi
				;;
			esac
		done <<-END
			$all
		END
	done
	# Without the zombies.
	while read -r id _; do
		[ -n "$id" ] || continue
		case $ids in
		*" $id "*) alive="$alive$id " ;;
		esac
	done <<-END
		$all
	END
	ids=$alive
}

# tell SIGNAL ID MARK signals a command with all its processes and prints them.
tell() {
	tree "$2" "$3"
	for id in $ids; do
		[ -z "$1" ] || kill -s "$1" "$id" 2>/dev/null
		echo "$id"
	done
}

# hit SIGNAL ID signals a process; it succeeds if there is one.
hit() {
	[ -z "$1" ] || kill -s "$1" "$2"
	IFS= read -r line <"/proc/$2/stat" || return 1
	case ${line##*) } in
	[ZX]*) return 1 ;;
	esac
} 2>/dev/null

# listening ID MARK succeeds if a process of the command holds a standard input.
listening() {
	tree "$1" "$2"
	for id in $ids; do
		# What took the number of a closed one is hardly ever one of these.
		if [ -p "/proc/$id/fd/0" ] || [ -c "/proc/$id/fd/0" ]; then return 0; fi
	done
	return 1
}

# everyone prints "id user name" of the processes that commands have started.
everyone() {
	scan
	ours=' 1 '
	while read -r id parent group session; do
		[ -n "$id" ] || continue
		IFS= read -r line <"/proc/$id/cmdline" && case $line in
		*'# agentenv control shell') ours="$ours$session " ;;
		esac
	done 2>/dev/null <<-END
		$all
	END
	while read -r id parent group session; do
		[ -n "$id" ] || continue
		case $ours in
		*" $session "*) continue ;;
		esac
		IFS= read -r line <"/proc/$id/stat" || continue
		line=${line#*\(}
		printf '%s %s %s\n' "$id" "$(stat -c %u "/proc/$id")" "${line%)*}"
	done 2>/dev/null <<-END
		$all
	END
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
