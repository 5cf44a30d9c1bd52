package primitives

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. In JSON it is a number, or a text that [ParseSize] understands.
type Size int64

// NoSize is the [Size] that means no limit, written "none".
const NoSize Size = -1

// sizeUnits are the units by their first letter, in either case.
var sizeUnits = map[byte]int64{'b': 1, 'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30, 't': 1 << 40}

// ParseSize reads a size as people write it: "512MiB", "512m", "1.5g", "4096" bytes, or "none",
// which is [NoSize]. Units are powers of 1024, whether they are written k, KB or KiB. Any other
// text returns fs.ErrInvalid.
func ParseSize(text string) (Size, error) {
	if text == "none" {
		return NoSize, nil
	}
	wrong := fmt.Errorf("%w: %q is no size; give a number of bytes, or one with a unit, such as 512m or 8g, or none", fs.ErrInvalid, text)
	lower := strings.ToLower(strings.TrimSpace(text))
	digits := strings.TrimRight(lower, "bikmgt ")
	number, err := strconv.ParseFloat(digits, 64)
	if err != nil || strings.ContainsAny(digits, "ex_npi+-") { // exponents, hexadecimals and infinity
		return 0, wrong
	}
	factor := int64(1)
	if unit := strings.TrimLeft(lower[len(digits):], " "); unit != "" {
		factor = sizeUnits[unit[0]]
		switch unit[1:] {
		case "":
		case "b", "ib":
			if unit[0] == 'b' {
				factor = 0
			}
		default:
			factor = 0
		}
	}
	bytes := number * float64(factor)
	if factor == 0 || bytes >= math.MaxInt64 {
		return 0, wrong
	}
	return Size(bytes), nil
}

// UnmarshalJSON reads a number of bytes or what [ParseSize] reads.
func (s *Size) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err == nil && string(data) != "null" {
		*s, err = ParseSize(text)
		return err
	}
	var number int64
	if err := json.Unmarshal(data, &number); err != nil {
		return fmt.Errorf("%w: %s is no size; give a number of bytes, or a text with a unit, such as 512m or 8g", fs.ErrInvalid, data)
	}
	*s = Size(number)
	return nil
}
