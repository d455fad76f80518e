{{/* Templates that an application's pod embeds, as values-sidecar.yaml shows. Their context is this chart's. */}}

{{/* An item of initContainers. It is ready before the application starts and ends after the application. */}}
{{- define "watchproxy.sidecar.container" -}}
- {{ include "watchproxy.container" . | nindent 2 | trim }}
  restartPolicy: Always
{{- end -}}

{{/* "true" if a kubeconfig leads to the sidecar. With TLS, the in-cluster configuration does. */}}
{{- define "watchproxy.sidecar.kubeconfig" -}}
{{- if and (eq .Values.kind "Sidecar") (eq .Values.tls.mode "none") -}}true{{- end -}}
{{- end -}}

{{/* Items of env for the application's containers. */}}
{{- define "watchproxy.sidecar.env" -}}
{{- if include "watchproxy.sidecar.kubeconfig" . -}}
- name: KUBECONFIG
  value: {{ .Values.sidecar.mountPath }}/kubeconfig
{{- else if eq .Values.tls.mode "sidecar" -}}
- name: KUBERNETES_SERVICE_HOST
  value: {{ include "watchproxy.host" .Values.config.listen | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ include "watchproxy.port" .Values.config.listen | quote }}
- name: KUBERNETES_SERVICE_PORT_HTTPS
  value: {{ include "watchproxy.port" .Values.config.listen | quote }}
{{- end -}}
{{- end -}}

{{/* Items of volumeMounts for the application's containers. */}}
{{- define "watchproxy.sidecar.mount" -}}
{{- if include "watchproxy.sidecar.kubeconfig" . -}}
- name: watchproxy-client
  mountPath: {{ .Values.sidecar.mountPath }}
  readOnly: true
{{- else if eq .Values.tls.mode "sidecar" -}}
- name: watchproxy-serviceaccount
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}
{{- end -}}

{{/* Items of the pod's volumes. */}}
{{- define "watchproxy.sidecar.volumes" -}}
{{ include "watchproxy.volumes" . }}
{{- if include "watchproxy.sidecar.kubeconfig" . }}
- name: watchproxy-client
  configMap:
    name: {{ include "watchproxy.fullname" . }}
    items:
    - {key: kubeconfig, path: kubeconfig}
{{- end }}
{{- end -}}

{{/* A checksum for an annotation of the pod, so that a change of the configuration rolls the pod. */}}
{{- define "watchproxy.sidecar.annotations" -}}
{{- if .Values.rollOnConfigChange -}}
checksum/watchproxy: {{ include "watchproxy.checksum" . }}
{{- end -}}
{{- end -}}
