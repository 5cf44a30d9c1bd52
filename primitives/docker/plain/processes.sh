# What a control shell does with users and processes.

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
