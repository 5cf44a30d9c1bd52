# What a control shell does with files.

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
