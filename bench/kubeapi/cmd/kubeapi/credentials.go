package main

import (
	"bytes"
	"crypto/rand"
	"encoding/csv"
	"fmt"
	"net"
	"os"
)

// credentials is what an admin client needs in addition to the address.
type credentials struct {
	caPEM []byte
	token string
}

// loadCredentials makes sure that dir contains all keys, certificates and tokens with which the
// apiserver is started.
func loadCredentials(dir *stateDir, listenIP net.IP, tokenFile string) (credentials, error) {
	ca, err := loadAuthority(dir)
	if err != nil {
		return credentials{}, err
	}
	if err := ca.writeServingPair(dir, listenIP); err != nil {
		return credentials{}, err
	}
	if err := keepServiceAccountKey(dir); err != nil {
		return credentials{}, err
	}
	token, err := loadAdminToken(dir)
	if err != nil {
		return credentials{}, err
	}
	if err := writeTokens(dir, token, tokenFile); err != nil {
		return credentials{}, err
	}
	return credentials{caPEM: ca.pem, token: token}, nil
}

func loadAdminToken(dir *stateDir) (string, error) {
	kept, err := dir.read("admin.token")
	if err != nil || kept != nil {
		return string(bytes.TrimSpace(kept)), err
	}
	token := rand.Text()
	return token, dir.write("admin.token", []byte(token), 0o600)
}

// writeTokens writes a token file with the admin and the users of tokenFile, because the apiserver
// accepts only one.
func writeTokens(dir *stateDir, adminToken, tokenFile string) error {
	records := [][]string{{adminToken, "admin", "admin", "system:masters"}}
	if tokenFile != "" {
		f, err := os.Open(tokenFile)
		if err != nil {
			return fmt.Errorf("cannot read --token-file: %w", err)
		}
		defer f.Close()
		r := csv.NewReader(f)
		r.FieldsPerRecord = -1 // the groups are optional
		users, err := r.ReadAll()
		if err != nil {
			return fmt.Errorf("cannot read --token-file %s: %w", tokenFile, err)
		}
		for i, user := range users {
			if len(user) < 3 || user[0] == "" {
				return fmt.Errorf("--token-file %s: user %d is not token,user,uid[,groups]", tokenFile, i+1)
			}
		}
		records = append(records, users...)
	}
	var merged bytes.Buffer
	if err := csv.NewWriter(&merged).WriteAll(records); err != nil {
		return err
	}
	return dir.write("tokens.csv", merged.Bytes(), 0o600)
}
