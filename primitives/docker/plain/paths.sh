# What is wrong, as the status of a request. plain_errors.go has the same list.
e_missing=10 e_permission=11 e_directory=12 e_not_directory=13 e_not_regular=14
e_escape=15 e_exists=16 e_conflict=17 e_not_empty=18 e_no_space=19 e_invalid=20
e_loop=21 e_other=22

# fail STATUS [TEXT] ends the request.
fail() {
	printf '%s' "$2"
	exit "$1"
}

# why PATH fails with the reason for which PATH cannot be used.
why() {
	up=${1%/*}
	while [ -n "$up" ] && ! [ -e "$up" ] && ! [ -L "$up" ]; do up=${up%/*}; done
	[ -d "${up:-/}" ] || fail $e_not_directory
	(cd -- "${up:-/}") 2>/dev/null || fail $e_permission
	[ -e "$1" ] || [ -L "$1" ] || fail $e_missing
	fail "${2:-$e_permission}" "$3"
}

# resolve ROOT PATH FOLLOW sets at to the place that PATH names, without links. A
# relative PATH starts at ROOT and may not leave it. The last part may be missing;
# it is followed only if FOLLOW is not empty. What is missing before it is taken
# literally.
resolve() {
	rest=$2 links=40 gone=
	case $2 in
	/*) at= ;;
	*) at=$1 ;;
	esac
	while [ -n "$rest" ]; do
		part=${rest%%/*} more=
		case $rest in
		*/*) rest=${rest#*/} more=/ ;;
		*) rest= ;;
		esac
		last=1
		case $rest in
		*[!/]*) last= ;;
		esac
		case $part in
		'' | .) continue ;;
		..)
			[ -z "$gone" ] || break
			at=${at%/*}
			continue
			;;
		esac
		next=$at/$part
		if [ -n "$gone" ]; then
			at=$next
		elif [ -L "$next" ] && [ -z "$last" -o -n "$3" -o -n "$more" ]; then
			links=$((links - 1))
			[ $links -gt 0 ] || fail $e_loop
			link=$("$readlink" -n -- "$next" && printf .) || why "$next"
			rest=${link%.}$more$rest
			case $link in
			/*) at= ;;
			esac
		else
			at=$next
			if [ -z "$last" ] || [ -n "$more" ]; then
				if ! [ -e "$at" ]; then
					gone=$e_missing
				elif ! [ -d "$at" ]; then
					gone=$e_not_directory
				fi
			fi
		fi
	done
	case $2 in
	/*) ;;
	*)
		case $at/ in
		"$1"/*) ;;
		*) fail $e_escape ;;
		esac
		;;
	esac
	[ "$gone" != $e_not_directory ] || fail $e_not_directory
	at=${at:-/}
}
