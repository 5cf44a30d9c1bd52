# Starts a command: enters its directory, finds its program, says that all is
# well, and becomes the program. Refusals are told instead.
agentenv_refuse() {
	printf '%s %s %s\n' "$agentenv_tag" "$1" "$2"
	exit 0
}

case $agentenv_dir in
/*) ;;
*)
	agentenv_dir=$(readlink=$agentenv_readlink && resolve "$agentenv_root" "$agentenv_dir" 1 && printf '%s.' "$at") ||
		agentenv_refuse directory $?
	agentenv_dir=${agentenv_dir%.}
	;;
esac
if ! cd -- "$agentenv_dir" 2>/dev/null; then
	[ ! -d "$agentenv_dir" ] || agentenv_refuse directory $e_permission
	(why "${agentenv_dir%/}" $e_not_directory)
	agentenv_refuse directory $?
fi
# When memory runs out, commands are ended before the shells that start them.
{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null
agentenv_file=$1
case $1 in
*/*) ;;
*)
	agentenv_file= agentenv_path=${PATH-$agentenv_default} agentenv_status=$e_missing
	while [ -n "$agentenv_path" ]; do
		agentenv_part=${agentenv_path%%:*}
		case $agentenv_path in
		*:*) agentenv_path=${agentenv_path#*:} ;;
		*) agentenv_path= ;;
		esac
		[ -n "$agentenv_part" ] && [ -f "$agentenv_part/$1" ] || continue
		if [ -x "$agentenv_part/$1" ]; then
			agentenv_file=$agentenv_part/$1
			break
		fi
		agentenv_status=$e_permission
	done
	[ -n "$agentenv_file" ] || agentenv_refuse program $agentenv_status
	;;
esac
[ ! -d "$agentenv_file" ] || agentenv_refuse program $e_directory
[ -e "$agentenv_file" ] || agentenv_refuse program $e_missing
[ -x "$agentenv_file" ] || agentenv_refuse program $e_permission
agentenv_line=
if { IFS= read -r $agentenv_four agentenv_line <"$agentenv_file" || [ -r "$agentenv_file" ]; } 2>/dev/null; then
	case $agentenv_line in
	?ELF*) ;;
	'#!'*)
		read -r agentenv_line _ <"$agentenv_file"
		agentenv_line=${agentenv_line#'#!'}
		[ -n "$agentenv_line" ] || read -r _ agentenv_line _ <"$agentenv_file"
		[ -e "$agentenv_line" ] || agentenv_refuse program $e_missing
		;;
	*) agentenv_refuse program $e_invalid ;;
	esac
fi
